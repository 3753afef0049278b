#pragma once

// Files of the machine and objects of stores, told apart by their paths.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/s3/client.h"
#include "common/io/storage/file.h"

namespace titan::s3 {

// Paths that begin "s3://" are objects, all others files. A store is asked as the process's environment says
// (settings.h), from the first path of its on; what the environment lacks is the error of every operation. Never
// destroyed.
storage::Files& all_files();

// The bucket that all_files() asks for that path.
absl::StatusOr<std::shared_ptr<Client>> client_of(const std::string& path);

}  // namespace titan::s3
