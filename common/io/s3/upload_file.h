#pragma once

// Writes a new object from its beginning to its end, in parts that several connections send at once.

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
      int64_t{16} << 20;  // A store accepts 10,000 parts of one size, of at least 5 MiB except the last.
  int parts_at_once = 4;  // In memory; one more is being filled.
  int64_t block_bytes = int64_t{8} << 20;  // Bytes per request when reading.
  int blocks_at_once = 4, blocks_kept = 16;
};

// Readers do not see the object before sync(), which fails with AlreadyExists when the name exists. A file that was not
// synced is abandoned: its parts are deleted.
class UploadFile : public storage::WritableFile {
 public:
  UploadFile(std::shared_ptr<S3Client> client, std::string key, const TransferSizes& sizes)
      : client_(std::move(client)), key_(std::move(key)), sizes_(sizes) {}
  ~UploadFile() override;

  absl::Status append(std::string_view bytes) override;
  absl::Status sync() override;
  absl::Status close() override;

 private:
  absl::Status send_part();
  absl::Status take_oldest();
  absl::Status finish();

  const std::shared_ptr<S3Client> client_;
  const std::string key_;
  const TransferSizes sizes_;
  std::string filling_;
  Upload upload_;  // Without an id while everything fits in one part.
  std::deque<std::future<absl::StatusOr<CompletedPart>>> sending_;
  std::vector<CompletedPart> parts_;
  bool done_ = false;
  absl::Status failed_;  // The first error, which all later calls return.
};

}  // namespace titan::s3
