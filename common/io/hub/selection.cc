#include "common/io/hub/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"

namespace titan::hub {
namespace {

using Globs = std::vector<std::string>;

const std::map<std::string, Globs>& kinds() {
  static const auto* const kinds = new std::map<std::string, Globs>{
      {"tokenizer",
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}},
      {"config", {"config.json", "generation_config.json"}},
      {"index", {"*.safetensors.index.json"}},
      {"safetensors", {"*.safetensors", "*.safetensors.index.json"}},
  };
  return *kinds;
}

bool matches(const Globs& globs, const std::string& name) {
  const std::string last = name.substr(name.rfind('/') + 1);
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return fnmatch(glob.c_str(), name.c_str(), 0) == 0 || fnmatch(glob.c_str(), last.c_str(), 0) == 0;
  });
}

bool any_matches(const Globs& globs, const std::vector<RemoteFile>& files) {
  return std::any_of(files.begin(), files.end(), [&](const RemoteFile& file) { return matches(globs, file.name); });
}

Globs wanted(const Selection& selection) {
  Globs globs = selection.include;
  const bool unsaid = selection.assets.empty() && selection.include.empty();
  for (const std::string& kind : unsaid ? asset_kinds() : selection.assets)
    globs.insert(globs.end(), kinds().at(kind).begin(), kinds().at(kind).end());
  return globs;
}

}  // namespace

std::vector<std::string> asset_kinds() { return {"tokenizer", "config", "index", "safetensors"}; }

absl::Status check_selection(const Selection& selection) {
  for (const std::string& kind : selection.assets) {
    if (kinds().contains(kind)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--assets has '", kind, "': it must be of ",
                                                   absl::StrJoin(asset_kinds(), ", "), "; --include takes names",
                                                   did_you_mean(kind, asset_kinds())));
  }
  return absl::OkStatus();
}

std::vector<RemoteFile> select(const Selection& selection, const std::vector<RemoteFile>& files) {
  const Globs globs = wanted(selection);
  std::vector<RemoteFile> out;
  for (const RemoteFile& file : files) {
    if ((selection.all || matches(globs, file.name)) && !matches(selection.exclude, file.name)) out.push_back(file);
  }
  return out;
}

std::vector<std::string> unmatched(const Selection& selection, const std::vector<RemoteFile>& files) {
  std::vector<std::string> out;
  for (const std::string& kind : selection.assets) {
    if (!any_matches(kinds().at(kind), files)) out.push_back("--assets " + kind);
  }
  for (const std::string& glob : selection.include) {
    if (!any_matches({glob}, files)) out.push_back("--include " + glob);
  }
  return out;
}

}  // namespace titan::hub
