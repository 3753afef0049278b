#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// Files that know a faster way to write a new file of many bytes than one write after the other. create_large() asks
// for it.
class LargeWriter {
 public:
  virtual ~LargeWriter() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create_large(const std::string& path, int64_t bytes) = 0;
};

// As Files::create(), of a file that is going to have about `bytes`. What was appended may be seen by readers no sooner
// than sync() returns, and an error of writing it may be told by a later call, by sync() at the latest.
absl::StatusOr<std::unique_ptr<WritableFile>> create_large(Files& files, const std::string& path, int64_t bytes);

}  // namespace titan::storage
