#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"

namespace titan::data_files {

// Files that are on no disk of this machine.
class RemoteFiles {
 public:
  virtual ~RemoteFiles() = default;

  // The bytes as they are there, positioned at `offset`: a compressed file is not decompressed.
  virtual absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset) = 0;

  // The bytes of one, when that is known without asking for it.
  virtual std::optional<int64_t> size(const std::string&) const { return std::nullopt; }

  // Whatever reads or waits ends with Cancelled, for good. From any thread.
  virtual void stop() = 0;
};

}  // namespace titan::data_files
