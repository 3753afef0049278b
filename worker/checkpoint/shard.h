#pragma once

// One rank's part of a step on disk: writing it with checksums, and reading any box of any tensor back.

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/file.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/slice.h"

namespace titan::checkpoint {

// A piece of state that will not change any more: a copy in host memory, or the live CPU tensor while training stands
// still.
struct Staged {
  std::string key;
  std::vector<int64_t> shape;
  std::vector<int64_t> offset;
  at::Tensor data;  // CPU, contiguous.
  std::shared_ptr<const Form> form =
      nullptr;  // Of `data`: its numbers are written, which are made one tensor at a time.
};

struct ShardName {
  int attempt = 1;
  int rank = 0;
  std::string salt = {};  // Makes a name that never was, where deleting and making one cannot be kept apart.
};
// "a3-00012.safetensors", "a3-00012-SALT.safetensors"; copy > 0: "a3-00012.2.safetensors"
std::string shard_name(const ShardName& name, int copy = 0);

// Writes and fsyncs the new safetensors file {folder}/{name} with all of `parts`. AlreadyExists when the name is taken;
// on any other error the file is removed again. Cancelled once `stop` is set.
absl::StatusOr<ShardReport> write_tensors(storage::Files& files, const std::string& folder, const std::string& name,
                                          const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

// write_tensors under this rank's shard name; no file when there are no parts. A name that is taken (a leftover, or
// another job's) is never touched: the next copy number is used.
absl::StatusOr<ShardReport> write_shard(storage::Files& files, const std::string& folder, const ShardName& name,
                                        const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

// An open step. Holds a shared lock on the manifest, so that nobody purges the step meanwhile. Thread-safe.
class StepReader {
 public:
  // Errors: NotFound without a manifest, DataLoss for a damaged one.
  static absl::StatusOr<std::unique_ptr<StepReader>> open(storage::Files& files, const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  uint32_t manifest_crc() const { return manifest_crc_; }
  const std::string& folder() const { return folder_; }

  // Fills `out` (CPU, contiguous, of the record's type and the box's shape), verifying every chunk that it touches and
  // size and header of every file. Errors: DataLoss naming file and chunk; NotFound naming the file.
  absl::Status read(const TensorRecord& tensor, const Box& box, at::Tensor& out);

  // Reads and verifies everything; all problems found, not only the first.
  std::vector<absl::Status> verify();

 private:
  StepReader(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
  absl::StatusOr<storage::ReadableFile*> file(int index);
  absl::Status read_chunk(const TensorRecord& tensor, const Piece& piece, size_t chunk, std::string& buffer);

  storage::Files& files_;
  std::string folder_;
  Manifest manifest_;
  uint32_t manifest_crc_ = 0;
  std::unique_ptr<storage::FileLock> lock_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<storage::ReadableFile>> open_;  // Guarded by mutex_; verified once opened.
};

}  // namespace titan::checkpoint
