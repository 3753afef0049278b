#pragma once

// A step as whoever reads it sees it: any box of any tensor, from as many shards as it takes, with every byte verified.
// Several threads read, each straight to where its bytes belong, or through a small buffer of its own.

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

// A box of a tensor that is to be read.
struct Wanted {
  const TensorRecord* tensor = nullptr;  // The manifest's.
  Box box;
  // Of the box's shape. What is on another device, of another type than the record or not contiguous is filled in parts
  // of kPartBytes. Null: the bytes are verified alone.
  const at::Tensor* out = nullptr;
};

inline constexpr int kReaders = 4;                       // Threads of one read() or verify().
inline constexpr int64_t kPartBytes = int64_t{8} << 20;  // What is copied at once, and through a buffer where needed.
inline constexpr int64_t kReadMemory = kReaders * (kChunkBytes + kPartBytes);  // The most that they take for buffers.

// An open step. Holds a shared lock on the manifest, so that nobody purges the step meanwhile. Thread-safe.
class StepReader {
 public:
  // Errors: NotFound without a manifest, DataLoss for a damaged one.
  static absl::StatusOr<std::unique_ptr<StepReader>> open(storage::Files& files, const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  uint32_t manifest_crc() const { return manifest_crc_; }
  const std::string& folder() const { return folder_; }

  // Fills all `out`, shard by shard, so that what lies together is read once. Opens those shards alone that hold a part
  // of it, verifying size, header and index of each and every chunk that it touches. Errors: DataLoss naming file and
  // chunk; NotFound naming the file. After an error `out` is filled in parts, of which some may be damaged.
  absl::Status read(const std::vector<Wanted>& wanted);
  absl::Status read(const TensorRecord& tensor, const Box& box, at::Tensor& out) {
    return read({{&tensor, box, &out}});
  }

  // Reads and verifies everything; all problems found, not only the first. `progress` hears now and then, on any
  // thread but on one at a time, how many of all bytes were read.
  std::vector<absl::Status> verify(const std::function<void(int64_t done, int64_t all)>& progress = nullptr);

 private:
  // What is known of a shard once its header and index were verified.
  struct Shard {
    ShardIndex index;
    std::vector<std::pair<size_t, int64_t>> begins;  // (number of the tensor, first byte) of its pieces, ascending.
  };
  // Bytes of a file whose checksums are known, a chunk after the other.
  struct Chunks {
    int64_t begin = 0;
    int64_t bytes = 0;
    const std::vector<uint32_t>* crcs = nullptr;

    int64_t size_at(int64_t at) const { return std::min(kChunkBytes, begin + bytes - at); }
  };
  // A piece, and who wants a part of it.
  struct Source {
    const TensorRecord* tensor = nullptr;
    Box piece;
    int64_t begin = 0;
    Chunks chunks;
    const Wanted* wanted = nullptr;
  };
  // Of a source, what is copied at once.
  struct Unit {
    const Source* source = nullptr;
    Box part;
    int64_t begin = 0;  // First byte in the file.
  };
  // Neighbours in a file, for one thread.
  struct Task {
    int64_t file = 0;
    std::vector<Unit> units;
  };
  // One thread's memory.
  struct Loaded {
    const std::vector<uint32_t>* of = nullptr;
    int64_t begin = -1;
    at::Tensor chunk, part;  // Undefined until needed.
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
  // Of what could be opened; why the rest could not, by file.
  std::vector<Stretch> stretches(std::vector<absl::Status>& unusable);

  storage::Files& files_;
  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<Placement> placement_;
  uint32_t manifest_crc_ = 0;
  std::unique_ptr<storage::FileLock> lock_;
  std::mutex shards_mutex_, open_mutex_;                            // Never held while something is read.
  std::map<int64_t, Shard> shards_;                                 // Guarded by shards_mutex_.
  std::map<int64_t, std::shared_ptr<storage::ReadableFile>> open_;  // Guarded by open_mutex_.
};

}  // namespace titan::checkpoint
