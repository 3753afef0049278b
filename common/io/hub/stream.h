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

// A piece of a file, and how long the whole file is.
struct Chunk {
  std::string bytes;
  int64_t file_size = -1;  // -1: not known.
};

// Chunks in a folder that several processes of a machine share, at most `limit` bytes of them. Those that nobody has
// asked for the longest make room. What is damaged, or cannot be kept, is as if it were not there.
class ChunkCache {
 public:
  // The folder is made for this user alone when it is missing.
  static absl::StatusOr<std::unique_ptr<ChunkCache>> open(const std::string& folder, int64_t limit);

  // The chunk of this name, which tells its content from any other, or what `fetch` gives. Of several that ask for one
  // at a time a single one fetches it. Errors: those of `fetch`, Cancelled.
  absl::StatusOr<Chunk> get(const std::string& name, const std::function<absl::StatusOr<Chunk>()>& fetch,
                            const std::stop_token& stop);

 private:
  ChunkCache(Folder folder, int64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  std::optional<Chunk> find(const std::string& key) const;
  absl::Status keep(const std::string& key, const Chunk& chunk, const std::stop_token& stop) const;
  absl::Status make_room(int64_t bytes) const;

  const Folder folder_;
  const int64_t limit_;
};

// How a repository's file is read from the hub as it is needed.
struct StreamOptions {
  http::Settings settings;
  http::RetryPolicy retry;
  int64_t chunk_bytes = int64_t{8} << 20;  // What is asked for at a time.
  std::string cache_folder;                // Of this machine; ranks may share it. "": nothing is kept.
  int64_t cache_bytes = int64_t{16} << 30;
};

// The bytes of a file as the hub has them: a compressed one is not decompressed.
class Stream {
 public:
  virtual ~Stream() = default;

  // Fills `buffer` with up to `size` bytes; 0 at the end of the file.
  // Errors: those of hub::Client once retries were of no use, Cancelled.
  virtual absl::StatusOr<size_t> read(char* buffer, size_t size) = 0;
};

// Positioned at `offset`; behind the end there is nothing to read. A revision that is no commit costs a request, and
// two streams of it may be of different commits: who reads many files resolves it once (hub::Client::resolve). With a
// commit what the cache has is read without a word to the hub.
absl::StatusOr<std::unique_ptr<Stream>> open_stream(const StreamOptions& options, const Repo& repo,
                                                    const std::string& file, const std::string& revision,
                                                    int64_t offset, const std::stop_token& stop = {});

}  // namespace titan::hub
