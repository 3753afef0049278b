#include "common/io/hub/get.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/base/text/nearest.h"
#include "common/io/hub/names.h"
#include "common/io/hub/part_file.h"
#include "common/io/storage/file.h"

namespace titan::hub {
namespace {

using Globs = std::vector<std::string>;

const std::map<std::string, Globs>& kinds() {
  static const auto* const kinds = new std::map<std::string, Globs>{
      {"tokenizer",
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}},
      {"config", {"config.json", "generation_config.json", "preprocessor_config.json"}},
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

Globs wanted(const FileSelection& selection) {
  Globs globs = selection.include;
  const bool unsaid = selection.assets.empty() && selection.include.empty();
  for (const std::string& kind : unsaid ? asset_kinds() : selection.assets)
    globs.insert(globs.end(), kinds().at(kind).begin(), kinds().at(kind).end());
  return globs;
}

}  // namespace

std::vector<std::string> asset_kinds() { return {"tokenizer", "config", "index", "safetensors"}; }

absl::Status check_selection(const FileSelection& selection) {
  for (const std::string& kind : selection.assets) {
    if (kinds().contains(kind)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--assets has '", kind, "': it must be one of ",
                                                   absl::StrJoin(asset_kinds(), ", "), "; --include takes names",
                                                   did_you_mean(kind, asset_kinds())));
  }
  return absl::OkStatus();
}

std::vector<RemoteFile> select(const FileSelection& selection, const std::vector<RemoteFile>& files) {
  const Globs globs = wanted(selection);
  std::vector<RemoteFile> out;
  for (const RemoteFile& file : files) {
    if ((selection.all || matches(globs, file.name)) && !matches(selection.exclude, file.name)) out.push_back(file);
  }
  return out;
}

std::vector<std::string> unmatched(const FileSelection& selection, const std::vector<RemoteFile>& files) {
  std::vector<std::string> out;
  for (const std::string& kind : selection.assets) {
    if (!any_matches(kinds().at(kind), files)) out.push_back("--assets " + kind);
  }
  for (const std::string& glob : selection.include) {
    if (!any_matches({glob}, files)) out.push_back("--include " + glob);
  }
  return out;
}

namespace {

constexpr char kLock[] = ".titan-assets.lock";
constexpr absl::Duration kLookEach = absl::Milliseconds(200);

// Allows one download per folder: a second one waits, and then finds what the first one downloaded.
absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string& folder, Watcher& watcher,
                                                        const std::stop_token& stop) {
  const std::string path = absl::StrCat(folder, "/", kLock);
  for (bool reported = false; !stop.stop_requested(); reported = true) {
    auto lock = storage::posix_files().lock(path, storage::LockMode::kExclusive, kLookEach);
    if (!absl::IsUnavailable(lock.status())) return lock;
    if (!reported) watcher.waiting(folder);
  }
  return absl::CancelledError("interrupted");
}

std::string some_names(const std::vector<RemoteFile>& files) {
  constexpr size_t kSome = 5;
  std::string out;
  for (size_t i = 0; i < files.size() && i < kSome; ++i)
    absl::StrAppend(&out, i == 0 ? "" : ", ", text::printable_name(files[i].name));
  return files.size() > kSome ? absl::StrCat(out, " and ", files.size() - kSome, " more") : out;
}

}  // namespace

absl::StatusOr<GetResult> get(const GetRequest& request, Watcher& watcher, const std::stop_token& stop) {
  TITAN_RETURN_IF_ERROR(check_selection(request.selection));
  const Repo& repo = request.transfer.repo;
  HubClient client(request.transfer.settings, request.transfer.retry);
  TITAN_ASSIGN_OR_RETURN(const std::string commit, client.resolve(repo, request.revision, stop));
  TITAN_ASSIGN_OR_RETURN(const std::vector<RemoteFile> all, client.list(repo, commit, stop));
  std::vector<RemoteFile> wanted = select(request.selection, all);
  if (wanted.empty())
    return absl::NotFoundError(
        absl::StrCat(repo.id, " has no file that matches the request; it has ", some_names(all)));
  GetResult result;
  result.unmatched = unmatched(request.selection, all);
  if (request.dry_run && !storage::posix_files().is_folder(request.folder)) {  // A dry run creates no folder.
    result.plan.commit = commit;
    for (RemoteFile& file : wanted) result.plan.files.push_back({std::move(file), false, {}});
    return result;
  }
  TITAN_ASSIGN_OR_RETURN(const Folder folder, Folder::make(request.folder));
  std::unique_ptr<storage::FileLock> held;
  if (!request.dry_run) {
    TITAN_ASSIGN_OR_RETURN(held, lock(request.folder, watcher, stop));
  }
  Inventory inventory = Inventory::load(folder);
  TITAN_ASSIGN_OR_RETURN(result.plan, make_plan(
                                          folder, std::move(wanted), commit, inventory,
                                          [&watcher](const RemoteFile& file) { watcher.checking(file); }, stop));
  if (request.dry_run) return result;
  for (const PlannedFile& file : result.plan.files) {
    if (file.done) TITAN_RETURN_IF_ERROR(remove_parts(folder, file.remote));
  }
  watcher.planned(result.plan);
  TITAN_RETURN_IF_ERROR(inventory.save(folder));
  TITAN_RETURN_IF_ERROR(download(request.transfer, folder, result.plan, inventory, watcher, stop));
  return result;
}

}  // namespace titan::hub
