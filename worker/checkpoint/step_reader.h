#pragma once

// A step as whoever reads it sees it: any box of any tensor, from as many shards as it takes, with every byte verified.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/file.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_index.h"

namespace titan::checkpoint {

// A box of a tensor that is to be read.
struct Wanted {
  const TensorRecord* tensor = nullptr;  // The manifest's.
  Box box;
  at::Tensor* out = nullptr;  // CPU, contiguous, of the record's type and the box's shape.
};

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
  // chunk; NotFound naming the file.
  absl::Status read(const std::vector<Wanted>& wanted);
  absl::Status read(const TensorRecord& tensor, const Box& box, at::Tensor& out) {
    return read({{&tensor, box, &out}});
  }

  // Reads and verifies everything; all problems found, not only the first.
  std::vector<absl::Status> verify();

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
  };
  // A piece, and who wants a part of it.
  struct Source {
    const TensorRecord* tensor = nullptr;
    Box piece;
    int64_t begin = 0;
    Chunks chunks;
    const Wanted* wanted = nullptr;
  };
  struct Loaded {  // One chunk.
    const std::vector<uint32_t>* of = nullptr;
    int64_t begin = -1;
    std::string bytes;
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
  absl::Status read_file(int64_t file, std::vector<Source>& sources);
  absl::Status copy(int64_t file, const Source& source, Loaded& loaded);
  absl::Status load(int64_t file, const Chunks& chunks, int64_t at, const std::string& what, Loaded& loaded);
  std::string first_piece_at(int64_t file, const Shard& shard, int64_t at) const;
  void verify_chunks(int64_t file, const Chunks& chunks, absl::FunctionRef<std::string(int64_t)> what,
                     std::vector<absl::Status>& problems);

  storage::Files& files_;
  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<Placement> placement_;
  uint32_t manifest_crc_ = 0;
  std::unique_ptr<storage::FileLock> lock_;
  std::mutex shards_mutex_, open_mutex_;
  std::map<int64_t, Shard> shards_;                                 // Guarded by shards_mutex_.
  std::map<int64_t, std::shared_ptr<storage::ReadableFile>> open_;  // Guarded by open_mutex_.
};

}  // namespace titan::checkpoint
