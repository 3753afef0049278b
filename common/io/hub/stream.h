#pragma once

// A repository's file, read from the hub as it is needed.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/hub/client.h"

namespace titan::hub {

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
