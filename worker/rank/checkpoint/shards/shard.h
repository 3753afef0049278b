#pragma once

// One rank's part of a step on disk. How it is read: step_reader.h.

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/checkpoint/shards/written_step.h"

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

// Writes and fsyncs the new safetensors file {folder}/{name} with all of `parts`, which are whole tensors.
// AlreadyExists when the name is taken; on any other error the file is removed again. Cancelled once `stop` is set.
absl::Status write_tensors(storage::Files& files, const std::string& folder, const std::string& name,
                           const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

// The same with pieces of tensors and an index at the end, under this rank's shard name; no file when there are no
// parts. A name that is taken (a leftover, or another job's) is never touched: the next copy number is used.
absl::StatusOr<WrittenShard> write_shard(storage::Files& files, const std::string& folder, const ShardName& name,
                                         const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

}  // namespace titan::checkpoint
