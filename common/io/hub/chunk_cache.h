#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
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

}  // namespace titan::hub
