#pragma once

// Copies of a store: made while it serves, checked, and restored into the state folder of a controller that is not
// running.

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::store {

// Name of the store's file in a controller's state folder.
inline constexpr char kDatabaseName[] = "titan.db";

// A controller whose store's file was deleted saves the store under the file's name, this text and the Unix time.
inline constexpr char kRescued[] = ".rescued-";

struct StoreInfo {
  std::string cluster;   // Id of the store.
  int64_t revision = 0;  // Revision of the last change.
  int64_t bytes = 0;
};

// Writes a consistent copy of the store at `path`, which may be in use, to `copy`: one file (mode 0600) that does not
// exist yet or is empty. Errors: FailedPrecondition if `copy` is not empty; those of the disk; DataLoss if the copy
// cannot be read back.
absl::StatusOr<StoreInfo> copy_store(const std::string& path, const std::string& copy);

// A copy of the store in memory, for when it cannot be written to a disk.
struct StoreImage {
  StoreInfo info;
  std::string bytes;  // Content of the file.
};

// Copies the store that `database` has open, even if its file was deleted since. The caller keeps others from using the
// connection. Errors: ResourceExhausted (memory); DataLoss if the image cannot be read back.
absl::StatusOr<StoreImage> image_of(sqlite3* database);

// Reads everything in the store. Errors: NotFound; InvalidArgument if it is not a store; FailedPrecondition if it has
// another schema; DataLoss, which names the damage.
absl::StatusOr<StoreInfo> check_store(const std::string& path);

// Checks `copy` and puts it into `folder`, which must be empty or missing. The store is durable when this returns, and
// never partial. Errors: those of check_store; FailedPrecondition if the folder is not empty.
absl::StatusOr<StoreInfo> restore_store(const std::string& copy, const std::string& folder);

}  // namespace titan::store
