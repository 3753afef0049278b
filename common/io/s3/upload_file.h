#pragma once

// A new object that is written from its beginning to its end, in parts that several connections send at once.

#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/io/s3/client.h"
#include "common/io/storage/file.h"

namespace titan::s3 {

struct TransferSizes {
  int64_t part_bytes =
      int64_t{16} << 20;  // A store takes 10,000 parts of one size, of 5 MiB at least but for the last.
  int parts_at_once = 4;  // In memory; one more is being filled.
  int64_t block_bytes = int64_t{8} << 20;  // What is asked for at once when reading.
  int blocks_at_once = 4, blocks_kept = 16;
};

// Nothing of it is to be seen before sync(), which fails with AlreadyExists where the name is taken. What is not synced
// is given up: its parts are deleted.
class UploadFile : public storage::WritableFile {
 public:
  UploadFile(std::shared_ptr<Client> client, std::string key, const TransferSizes& sizes)
      : client_(std::move(client)), key_(std::move(key)), sizes_(sizes) {}
  ~UploadFile() override;

  absl::Status append(std::string_view bytes) override;
  absl::Status sync() override;
  absl::Status close() override;

 private:
  absl::Status send_part();
  absl::Status take_oldest();
  absl::Status finish();

  const std::shared_ptr<Client> client_;
  const std::string key_;
  const TransferSizes sizes_;
  std::string filling_;
  Upload upload_;  // Without an id while all fits in one part.
  std::deque<std::future<absl::StatusOr<Part>>> sending_;
  std::vector<Part> parts_;
  bool done_ = false;
  absl::Status failed_;  // Sticky.
};

}  // namespace titan::s3
