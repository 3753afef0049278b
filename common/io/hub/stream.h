#pragma once

// Streams a repository's file from the hub as it is needed, and caches its chunks in a folder that processes share.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/hub/client.h"
#include "common/io/hub/folder.h"

namespace titan::hub {

// A piece of a file, and the size of the whole file.
struct Chunk {
  std::string bytes;
  int64_t file_size = -1;  // -1: unknown.
};

// Caches chunks in a folder that several processes of a machine share, at most `limit` bytes of them. The least
// recently used ones are evicted. Damaged chunks are fetched again, and chunks that cannot be stored are not cached.
class ChunkCache {
 public:
  // Creates a missing folder, with access for this user only.
  static absl::StatusOr<std::unique_ptr<ChunkCache>> open(const std::string& folder, int64_t limit);

  // Returns the chunk `name`, which identifies its content, from the cache or from `fetch`. Only one of several
  // concurrent callers fetches it. Errors: those of `fetch`, Cancelled.
  absl::StatusOr<Chunk> get(const std::string& name, const std::function<absl::StatusOr<Chunk>()>& fetch,
                            const std::stop_token& stop);

 private:
  ChunkCache(Folder folder, int64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  std::optional<Chunk> find(const std::string& key) const;
  absl::Status keep(const std::string& key, const Chunk& chunk, const std::stop_token& stop) const;
  absl::Status evict(int64_t bytes) const;

  const Folder folder_;
  const int64_t limit_;
};

// Options of open_stream().
struct StreamOptions {
  http::HttpSettings settings;
  http::RetryPolicy retry;
  int64_t chunk_bytes = int64_t{8} << 20;  // Bytes per request.
  std::string cache_folder;                // Local folder that ranks may share. "": no cache.
  int64_t cache_bytes = int64_t{16} << 30;
};

// Reads the stored bytes of a file: a compressed one is not decompressed.
class Stream {
 public:
  virtual ~Stream() = default;

  // Fills `buffer` with up to `size` bytes and returns how many; 0 at the end of the file. Errors: those of
  // hub::HubClient after its retries, Cancelled.
  virtual absl::StatusOr<size_t> read(char* buffer, size_t size) = 0;
};

// Opens a stream at `offset`; past the end there is nothing to read. A revision that is not a commit costs a request,
// and two streams of it may read different commits: to read many files, resolve it once (hub::HubClient::resolve). With
// a commit, cached chunks are read without contacting the hub.
absl::StatusOr<std::unique_ptr<Stream>> open_stream(const StreamOptions& options, const Repo& repo,
                                                    const std::string& file, const std::string& revision,
                                                    int64_t offset, const std::stop_token& stop = {});

}  // namespace titan::hub
