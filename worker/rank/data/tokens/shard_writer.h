#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/tokens/shard_format.h"

namespace titan::data {

// Writes a shard: NAME.tokens as documents come, NAME.index at the end. What a killed writer left is replaced.
class ShardWriter {
 public:
  // `name` is the path without an ending. Tokens have `width` bytes; `marked`: 4, and they say which are labels.
  static absl::StatusOr<ShardWriter> create(storage::Files& files, const std::string& name, uint32_t width,
                                            bool marked = false);

  absl::Status add_document(const std::vector<int32_t>& tokens);

  // Writes the index; both files are durable then.
  struct Written {
    int64_t tokens = 0, documents = 0;
    uint32_t index_sum = 0;  // CRC-32C of NAME.index, which holds those of NAME.tokens.
  };
  absl::StatusOr<Written> finish();

 private:
  ShardWriter(storage::Files& files, std::string name, uint32_t width, bool marked)
      : files_(&files), name_(std::move(name)) {
    header_.version = marked ? 2 : 1;
    header_.width = marked ? 4 : width;
  }
  absl::Status flush(bool all);

  storage::Files* files_;
  std::string name_;
  ShardHeader header_;
  std::unique_ptr<storage::WritableFile> tokens_;
  std::string buffer_;
  std::vector<uint32_t> sums_;
  std::vector<int64_t> begins_ = {0};
};

}  // namespace titan::data
