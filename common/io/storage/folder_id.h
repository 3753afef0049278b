#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// {dump}/.titan-folder holds a random id that is made once and never changed. It tells a folder from another one under
// the same name (a mount that is missing, a folder that was made anew), and finds the same folder under another name (a
// link, a bind mount). A copy of the whole folder has the same id: it is the same training.

// The id of `dump_folder`. Errors: NotFound when the folder or the id is missing; DataLoss when it cannot be
// understood.
absl::StatusOr<std::string> read_folder_id(Files& files, const std::string& dump_folder);

// The same, making the id when there is none. Call with the fence's lock held.
absl::StatusOr<std::string> make_folder_id(Files& files, const std::string& dump_folder);
// Makes the folder and takes the lock itself. Unavailable when the lock is held for longer than `patience`.
absl::StatusOr<std::string> settle_folder_id(Files& files, const std::string& dump_folder, absl::Duration patience);

enum class FolderIs {
  kSame,
  kMissing,  // No folder, or one without an id.
  kAnother,
};
// Is what lies under this name the folder that had this id? Creates nothing.
absl::StatusOr<FolderIs> compare_folder(Files& files, const std::string& dump_folder, const std::string& known_id);

// Why an attempt must not use a folder that is not the job's: UPPER_SNAKE, and for people. `committed_step`: newest
// full step that the job has committed; -1: none.
const char* lost_folder_reason(FolderIs is);
std::string lost_folder_message(FolderIs is, const std::string& dump_folder, int64_t committed_step);

}  // namespace titan::storage
