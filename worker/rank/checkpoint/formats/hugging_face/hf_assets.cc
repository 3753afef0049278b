#include "worker/rank/checkpoint/formats/hugging_face/hf_assets.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::checkpoint {
namespace {

constexpr int64_t kLargest = int64_t{256} << 20;  // Bytes of a file; the largest tokenizers have about ten MiB.

constexpr std::array kTaken = {"*.json",  "vocab*.txt", "merges*.txt",       "*.model",  "*.spm",   "*.tiktoken",
                               "*.jinja", "LICENSE*",   "tokenization_*.py", "LICENCE*", "NOTICE*", "USE_POLICY*"};
// They describe other weights and how these are stored, their training, or data.
constexpr std::array kLeft = {
    "config.json",        "*.index.json",   "adapter_*",          "*quant*",    "manifest.json",
    "trainer_state.json", "*_results.json", "dataset_info*.json", "state.json", ".*",
    "model_index.json",   "params.json",    "genai_config.json"};
// Folders of named chat templates.
constexpr std::array kFolders = {"additional_chat_templates", "chat_templates"};

template <size_t N>
bool matches(const std::array<const char*, N>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(), [&](const char* glob) { return fnmatch(glob, name.c_str(), 0) == 0; });
}

// Returns the names of the files to copy; those of templates include their folder.
absl::StatusOr<std::vector<std::string>> assets_in(storage::Files& files, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files.list(folder));
  std::vector<std::string> names;
  for (const std::string& name : entries) {
    const std::string path = storage::join_path(folder, name);
    if (matches(kFolders, name) && files.is_folder(path)) {
      TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> templates, files.list(path));
      for (const std::string& one : templates) {
        if (fnmatch("*.jinja", one.c_str(), 0) == 0) names.push_back(storage::join_path(name, one));
      }
    } else if (is_asset(name) && !files.is_folder(path)) {
      names.push_back(name);
    }
  }
  return names;
}

absl::Status write_asset(storage::Files& files, const std::string& to, const std::string& name,
                         const std::string& bytes) {
  if (const size_t slash = name.find('/'); slash != std::string::npos)
    TITAN_RETURN_IF_ERROR(files.make_folders(storage::join_path(to, name.substr(0, slash))));
  return storage::atomic_write(files, storage::join_path(to, name), bytes);
}

}  // namespace

bool is_asset(const std::string& name) { return matches(kTaken, name) && !matches(kLeft, name); }

absl::StatusOr<std::vector<std::string>> copy_assets(storage::Files& files, const HfAssets& assets,
                                                     const std::string& to) {
  std::vector<std::string> warnings;
  if (assets.folder.empty()) return warnings;
  const auto missing = [&](const absl::Status& why) -> absl::Status {
    if (assets.required) return annotate(why, "the tokenizer");
    warnings.push_back(absl::StrCat("the tokenizer was not copied next to the weights: ", std::string(why.message())));
    return absl::OkStatus();
  };
  const absl::StatusOr<std::vector<std::string>> names = assets_in(files, assets.folder);
  if (!names.ok()) {
    TITAN_RETURN_IF_ERROR(missing(names.status()));
    return warnings;
  }
  for (const std::string& name : *names) {
    const absl::StatusOr<std::string> bytes =
        storage::read_file(files, storage::join_path(assets.folder, name), kLargest);
    if (bytes.ok()) {
      TITAN_RETURN_IF_ERROR(write_asset(files, to, name, *bytes));
    } else {
      TITAN_RETURN_IF_ERROR(missing(bytes.status()));
    }
  }
  return warnings;
}

}  // namespace titan::checkpoint
