#pragma once

// Writes one rank's part of a step to disk. step_reader.h reads it.

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

// A piece of state that does not change any more: a copy in host memory, or the live CPU tensor while training stands
// still.
struct Staged {
  std::string key;
  std::vector<int64_t> shape;
  std::vector<int64_t> offset;
  at::Tensor data;  // The piece `[...]`, or its encoding by `form`; on the CPU, contiguous.
  std::shared_ptr<const StateEncoding> form =
      nullptr;  // Encoding of `data`. Decoded numbers are written, one tensor at a time.
};

// The parts of a shard's name.
struct ShardName {
  int attempt = 1;
  int rank = 0;
  std::string salt = {};  // Makes the name unique where a late deletion could otherwise hit a new file.
};
// Returns "a3-00012.safetensors" or "a3-00012-SALT.safetensors"; copy > 0: "a3-00012.2.safetensors".
std::string shard_name(const ShardName& name, int copy = 0);

// Writes and fsyncs the new safetensors file {folder}/{name} with all of `parts`, which are whole tensors. Errors:
// AlreadyExists if the name is taken; Cancelled once `stop` is set. Any error but AlreadyExists removes the file again.
absl::Status write_tensors(storage::Files& files, const std::string& folder, const std::string& name,
                           const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

// The same for pieces of tensors, with an index at the end, under this rank's shard name. Without parts it writes no
// file. A file of that name (a leftover, or another job's) is never touched: the next copy number is used.
absl::StatusOr<WrittenShard> write_shard(storage::Files& files, const std::string& folder, const ShardName& name,
                                         const std::vector<Staged>& parts, const std::atomic<bool>* stop = nullptr);

}  // namespace titan::checkpoint
