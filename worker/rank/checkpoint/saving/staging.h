#pragma once

// One save's content at the moment of the save, so that training may go on while it is written.

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/rank/checkpoint/shards/copy_stream.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

struct Save {
  std::string topic;  // Of its exchanges with the other ranks.
  int64_t step = 0;
  Kind kind = Kind::kFull;
  TrainState state;
  std::vector<Staged> parts;
  absl::Duration begin;  // Monotonic.
  // Copies to `parts` that may be under way: waited for before anything is read. Null: there are none.
  CopyStream* copies = nullptr;
  absl::Status staged;  // Why there is nothing to write.
};

bool is_model(const Slice& slice);  // Key "model.*".

enum class Copy {
  kWhereNeeded,  // The parts may be the live tensors themselves.
  kAlways,       // Into buffers of their own.
};

// This rank's part of a save, on the CPU: `parts` is replaced, its buffers are used again where they fit. `cast`: the
// type of floating-point tensors, but for those that narrowed_type() excepts; `warnings` gets a line for each of which
// it cannot hold a number. Tensors that `copies` takes are copied by it, and are in `parts` when it has ended.
void stage(const std::vector<Slice>& slices, Kind kind, std::optional<at::ScalarType> cast, Copy copy,
           std::vector<Staged>& parts, CopyStream* copies = nullptr, std::vector<std::string>* warnings = nullptr);

// checkpoint.export_dtype.
at::ScalarType export_type(const config::Checkpoint& config);

}  // namespace titan::checkpoint
