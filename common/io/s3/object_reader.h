#pragma once

// Reads objects in blocks over several connections at once, and reads ahead for sequential readers.

#include <future>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "common/base/sync/sync.h"
#include "common/io/s3/client.h"
#include "common/io/s3/upload_file.h"
#include "common/io/storage/file.h"

namespace titan::s3 {

// Keeps the most recently used blocks of all objects, so that memory does not grow with the number of objects.
// Thread-safe.
class BlockCache {
 public:
  BlockCache(std::shared_ptr<S3Client> client, const TransferSizes& sizes)
      : client_(std::move(client)), sizes_(sizes) {}

  using Block = std::shared_future<absl::StatusOr<std::shared_ptr<const std::string>>>;
  // Starts reading the block unless it is cached.
  Block block(const std::string& key, const std::string& etag, int64_t size, int64_t index);
  void forget(const std::string& key, const std::string& etag, int64_t index);  // After a failed read.

  const TransferSizes& sizes() const { return sizes_; }
  S3Client& client() { return *client_; }

 private:
  struct Entry {
    std::string key, etag;
    int64_t index;
    Block block;
  };

  const std::shared_ptr<S3Client> client_;
  const TransferSizes sizes_;
  sync::Mutex mutex_;
  std::list<Entry> entries_ TITAN_GUARDED_BY(mutex_);  // Most recently used first.
};

// Reads an object as it was when it was opened. read() returns Aborted once it was replaced.
class ObjectReader : public storage::ReadableFile {
 public:
  ObjectReader(std::shared_ptr<BlockCache> blocks, std::string key, const Facts& facts)
      : blocks_(std::move(blocks)), key_(std::move(key)), etag_(facts.etag), size_(facts.size) {}

  int64_t size() const override { return size_; }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override;

 private:
  absl::Status read_large(int64_t offset, int64_t bytes, char* out);

  const std::shared_ptr<BlockCache> blocks_;
  const std::string key_, etag_;
  const int64_t size_;
  std::atomic<int64_t> newest_{-1};  // The block that was read last.
};

}  // namespace titan::s3
