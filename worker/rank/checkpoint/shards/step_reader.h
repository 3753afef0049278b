#pragma once

// Reads a step: any box of any tensor, from as many shards as needed, with every byte verified. Several threads read,
// each directly to the destination or through a small buffer.

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/shard_index.h"

namespace titan::checkpoint {

// A box of a tensor to read.
struct Wanted {
  const TensorRecord* tensor = nullptr;  // A record of the manifest.
  Box box;
  // `[box.shape...]`. A tensor that is on another device, of another type than the record or not contiguous is filled
  // in parts of kPartBytes. Null: the bytes are only verified.
  const at::Tensor* out = nullptr;
};

inline constexpr int kReaders = 4;                       // Threads of one read() or verify().
inline constexpr int64_t kPartBytes = int64_t{8} << 20;  // Bytes copied at once, and through a buffer where needed.
inline constexpr int64_t kReadMemory = kReaders * (kChunkBytes + kPartBytes);  // Upper bound of the buffers, in bytes.

// An open step. Holds a shared lock on the manifest, so that the step is not purged meanwhile. Thread safe.
class StepReader {
 public:
  // Errors: NotFound without a manifest, DataLoss for a damaged one, Unavailable if a purge holds its lock for two
  // seconds.
  static absl::StatusOr<std::unique_ptr<StepReader>> open(storage::Files& files, const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  // CRC-32C of manifest.json, with which ranks check that they read the same step.
  uint32_t manifest_crc() const { return manifest_crc_; }
  const std::string& folder() const { return folder_; }

  // Fills all `out`, shard by shard, so that bytes that lie together are read once. Opens only the shards that hold a
  // part, and verifies size, header and index of each, and every chunk that it touches. Errors: DataLoss, names file
  // and chunk; NotFound, names the file. After an error `out` may be filled in part, and partly damaged.
  absl::Status read(const std::vector<Wanted>& wanted);
  // Does the same for one tensor; `out` is `[box.shape...]`.
  absl::Status read(const TensorRecord& tensor, const Box& box, at::Tensor& out) {
    return read({{&tensor, box, &out}});
  }

  // Reads and verifies everything. Returns all problems found, not only the first. Calls `progress` now and then with
  // the bytes read so far and in all, on any thread but on one at a time.
  std::vector<absl::Status> verify(const std::function<void(int64_t done, int64_t all)>& progress = nullptr);

 private:
  // Known about a shard once its header and index are verified.
  struct Shard {
    ShardIndex index;
    std::vector<std::pair<size_t, int64_t>> begins;  // (index of the tensor, first byte) of its pieces, ascending.
  };
  // Bytes of a file with known checksums, one chunk after the other.
  struct Chunks {
    int64_t begin = 0;
    int64_t bytes = 0;
    const std::vector<uint32_t>* crcs = nullptr;

    int64_t size_at(int64_t at) const { return std::min(kChunkBytes, begin + bytes - at); }
  };
  // A piece, and the request that needs a part of it.
  struct Source {
    const TensorRecord* tensor = nullptr;
    Box piece;
    int64_t begin = 0;
    Chunks chunks;
    const Wanted* wanted = nullptr;
  };
  // The part of a source that is copied at once.
  struct Unit {
    const Source* source = nullptr;
    Box part;
    int64_t begin = 0;  // First byte in the file.
  };
  // Neighboring units of a file, for one thread.
  struct Task {
    int64_t file = 0;
    std::vector<Unit> units;
  };
  // One thread's buffers.
  struct Loaded {
    const std::vector<uint32_t>* of = nullptr;
    int64_t begin = -1;
    at::Tensor chunk, part;  // `[kChunkBytes]` and `[kPartBytes]`, uint8. Undefined until needed.
  };
  class Buffers;
  // Chunks of a file from `begin` to `end`, to be verified.
  struct Stretch {
    int64_t file = 0;
    Chunks chunks;
    int64_t begin = 0, end = 0;
    std::function<std::string(int64_t at)> what;
  };

  StepReader(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
  std::string path_of(int64_t file) const;
  absl::StatusOr<std::shared_ptr<storage::ReadableFile>> open_file(int64_t number);
  absl::StatusOr<const Shard*> shard(int64_t number);
  absl::StatusOr<Shard> open_shard(int64_t number);
  absl::Status check_header(int64_t number, int64_t bytes, uint32_t crc);
  absl::Status place_pieces(int64_t number, Shard& shard) const;
  int64_t begin_of(int64_t file, const Shard& shard, size_t tensor, const Box& piece) const;
  void find_sources(const Wanted& wanted, std::map<int64_t, std::vector<Source>>& by_file) const;
  absl::Status place_sources(int64_t file, std::vector<Source>& sources);
  std::vector<Task> tasks_of(int64_t file, const std::vector<Source>& sources) const;
  absl::Status run(const Task& task, Loaded& loaded);
  absl::Status fill(int64_t file, const Unit& unit, Loaded& loaded);
  absl::Status copy(int64_t file, const Unit& unit, const Box& box, char* target, Loaded& loaded);
  absl::Status load(int64_t file, const Chunks& chunks, int64_t at, const std::string& what, Loaded& loaded);
  absl::Status read_chunk(int64_t file, const Chunks& chunks, int64_t at, const std::string& what, char* out);
  std::string first_piece_at(int64_t file, const Shard& shard, int64_t at) const;
  // Returns the stretches of all files that could be opened. `unusable` gets a status per file: why it could not be
  // opened.
  std::vector<Stretch> stretches(std::vector<absl::Status>& unusable);

  storage::Files& files_;
  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<PlacementIndex> placement_;
  uint32_t manifest_crc_ = 0;
  std::unique_ptr<storage::FileLock> lock_;
  std::mutex shards_mutex_, open_mutex_;                            // Not held while reading.
  std::map<int64_t, Shard> shards_;                                 // Guarded by shards_mutex_.
  std::map<int64_t, std::shared_ptr<storage::ReadableFile>> open_;  // Guarded by open_mutex_.
};

}  // namespace titan::checkpoint
