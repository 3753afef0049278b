#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// {dump}/.titan-folder holds a random id that is made once and never changed. It distinguishes a folder from another
// one under the same name (a missing mount, a recreated folder), and identifies the same folder under another name (a
// link, a bind mount). A copy of the whole folder has the same id, because it is the same training.

// Returns the id of `dump_folder`. Errors: NotFound when the folder or the id is missing; DataLoss when it is
// malformed.
absl::StatusOr<std::string> read_folder_id(Files& files, const std::string& dump_folder);

// Does the same, and makes a missing id. Call it with the fence's lock held.
absl::StatusOr<std::string> make_folder_id(Files& files, const std::string& dump_folder);
// Does the same, and makes the folder and takes the lock itself. Unavailable when the lock is held for longer than
// `timeout`.
absl::StatusOr<std::string> ensure_folder_id(Files& files, const std::string& dump_folder, absl::Duration timeout);

enum class FolderComparison {
  kSame,
  kMissing,  // No folder, or one without an id.
  kAnother,
};
// Compares the folder under this name with the one that had this id. Creates nothing.
absl::StatusOr<FolderComparison> compare_folder(Files& files, const std::string& dump_folder,
                                                const std::string& known_id);

// Return why an attempt must not use a folder that is not the job's: as an UPPER_SNAKE reason, and as a message for
// people. `committed_step`: newest full step that the job has committed; -1: none.
const char* folder_mismatch_reason(FolderComparison found);
std::string folder_mismatch_message(FolderComparison found, const std::string& dump_folder, int64_t committed_step);

}  // namespace titan::storage
