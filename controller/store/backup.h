#pragma once

// Copies of a store: made while it serves, checked, and put into the state folder of a controller that does not run
// yet.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::store {

// The file's name in a controller's state folder.
inline constexpr char kDatabaseName[] = "titan.db";

struct StoreInfo {
  std::string cluster;   // The store's id.
  int64_t revision = 0;  // Of its last change.
  int64_t bytes = 0;
};

// Writes a consistent copy of the store at `path`, which may be in use, to `copy`: one file (mode 0600) that did not
// exist or was empty. Errors: those of the disk; DataLoss when the copy cannot be read back.
absl::StatusOr<StoreInfo> copy_store(const std::string& path, const std::string& copy);

// Reads everything in it. Errors: NotFound; InvalidArgument when it is no store; FailedPrecondition when its schema is
// newer; DataLoss naming what is damaged.
absl::StatusOr<StoreInfo> check_store(const std::string& path);

// Checks `copy` and puts it into `folder`, which must be empty or missing: durable when this returns, and never half.
// Errors: those of check_store; FailedPrecondition (the folder is not empty, or in use).
absl::StatusOr<StoreInfo> restore_store(const std::string& copy, const std::string& folder);

}  // namespace titan::store
