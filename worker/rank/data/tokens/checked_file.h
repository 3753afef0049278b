#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::data {

// A stretch of a file that is verified as it is read, at any place. The CRC-32C of each block of `block` bytes lies in
// the file `sums`, one after the other from byte `sums_at`. Without `sums` nothing is verified.
class CheckedFile {
 public:
  struct Stretch {
    int64_t begin = 0, size = 0;
    int64_t block = 32 * 1024;
    int64_t sums_at = 0;
  };
  CheckedFile(std::string path, std::shared_ptr<storage::ReadableFile> file,
              std::shared_ptr<storage::ReadableFile> sums, const Stretch& stretch);

  // Fills `out` from byte `offset` of the stretch. Errors: those of the disk; DataLoss, names the file and the byte.
  absl::Status read(int64_t offset, int64_t bytes, char* out);

  int64_t size() const { return stretch_.size; }

 private:
  absl::Status load(int64_t block);

  const std::string path_;
  const std::shared_ptr<storage::ReadableFile> file_, sums_;
  const Stretch stretch_;
  std::vector<char> buffer_;  // The block read last, because rows follow each other.
  int64_t loaded_ = -1;
};

// Returns the number of blocks of `block` bytes in `size`.
constexpr int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace titan::data
