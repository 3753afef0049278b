#pragma once

// Copies of a store: made while it serves, checked, and put into the state folder of a controller that does not run
// yet.

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::store {

// The file's name in a controller's state folder.
inline constexpr char kDatabaseName[] = "titan.db";

// What a controller saved when somebody deleted its store's file: this after the file's name, then the time.
inline constexpr char kRescued[] = ".rescued-";

struct StoreInfo {
  std::string cluster;   // The store's id.
  int64_t revision = 0;  // Of its last change.
  int64_t bytes = 0;
};

// Writes a consistent copy of the store at `path`, which may be in use, to `copy`: one file (mode 0600) that did not
// exist or was empty. Errors: those of the disk; DataLoss when the copy cannot be read back.
absl::StatusOr<StoreInfo> copy_store(const std::string& path, const std::string& copy);

// The same without a file: for when there is no disk to write one to.
struct StoreImage {
  StoreInfo info;
  std::string bytes;  // What the file would hold.
};

// Of the store that `database` has open, also when its file was deleted since. The caller keeps others from using the
// connection. Errors: ResourceExhausted (memory); DataLoss when the image cannot be read back.
absl::StatusOr<StoreImage> image_of(sqlite3* database);

// Reads everything in it. Errors: NotFound; InvalidArgument when it is no store; FailedPrecondition when its schema is
// newer; DataLoss naming what is damaged.
absl::StatusOr<StoreInfo> check_store(const std::string& path);

// Checks `copy` and puts it into `folder`, which must be empty or missing: durable when this returns, and never half.
// Errors: those of check_store; FailedPrecondition (the folder is not empty, or in use).
absl::StatusOr<StoreInfo> restore_store(const std::string& copy, const std::string& folder);

}  // namespace titan::store
