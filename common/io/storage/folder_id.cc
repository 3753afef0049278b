#include "common/io/storage/folder_id.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::storage {
namespace {

std::string id_path(const std::string& dump_folder) { return join_path(dump_folder, ".titan-folder"); }

}  // namespace

absl::StatusOr<std::string> read_folder_id(Files& files, const std::string& dump_folder) {
  const std::string path = id_path(dump_folder);
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.open_no_link(path));
  std::string text(static_cast<size_t>(std::min<int64_t>(file->size(), 4096)), '\0');
  TITAN_RETURN_IF_ERROR(file->read(0, static_cast<int64_t>(text.size()), text.data()));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto id = json.is_object() ? json.find("id") : json.end();
  if (id == json.end() || !id->is_string() || id->get<std::string>().empty()) {
    return absl::DataLossError(absl::StrCat(
        path, ": no folder id in it; if no job uses this folder, delete the file and the next start makes another"));
  }
  return id->get<std::string>();
}

absl::StatusOr<std::string> make_folder_id(Files& files, const std::string& dump_folder) {
  absl::StatusOr<std::string> known = read_folder_id(files, dump_folder);
  if (!absl::IsNotFound(known.status())) return known;
  const std::string id = host::random_hex(16);
  const nlohmann::json json = {{"id", id},
                               {"created", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())}};
  TITAN_RETURN_IF_ERROR(atomic_write(files, id_path(dump_folder), json.dump() + "\n"));
  return id;
}

absl::StatusOr<std::string> ensure_folder_id(Files& files, const std::string& dump_folder, absl::Duration timeout) {
  absl::StatusOr<std::string> known = read_folder_id(files, dump_folder);
  if (!absl::IsNotFound(known.status())) return known;
  TITAN_RETURN_IF_ERROR(files.make_folders(dump_folder));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                         files.lock(join_path(dump_folder, ".fence.lock"), LockMode::kExclusive, timeout));
  return make_folder_id(files, dump_folder);
}

absl::StatusOr<FolderComparison> compare_folder(Files& files, const std::string& dump_folder,
                                                const std::string& known_id) {
  const absl::StatusOr<std::string> id = read_folder_id(files, dump_folder);
  if (absl::IsNotFound(id.status())) return FolderComparison::kMissing;
  if (!id.ok()) return id.status();
  return *id == known_id ? FolderComparison::kSame : FolderComparison::kAnother;
}

const char* folder_mismatch_reason(FolderComparison found) {
  return found == FolderComparison::kMissing ? "CHECKPOINTS_GONE" : "DUMP_FOLDER_REPLACED";
}

std::string folder_mismatch_message(FolderComparison found, const std::string& dump_folder, int64_t committed_step) {
  return absl::StrCat("the job's dump folder ", dump_folder, " is not here: there is ",
                      found == FolderComparison::kMissing ? "no folder with an id (.titan-folder)" : "another folder",
                      " under that name",
                      committed_step < 0 ? "" : absl::StrCat(" (the job has committed step ", committed_step, ")"),
                      "; mount or restore it, or submit the job again to start from scratch");
}

}  // namespace titan::storage
