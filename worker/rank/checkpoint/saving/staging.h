#pragma once

// One save's content at the time of the save, so that training can continue while it is written.

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/rank/checkpoint/shards/copy_stream.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

struct Save {
  std::string topic;  // Names its exchanges with the other ranks.
  int64_t step = 0;
  CheckpointKind kind = CheckpointKind::kFull;
  TrainState state;
  std::vector<Staged> parts;
  absl::Duration begin;  // Monotonic time.
  // Copies to `parts` that may still run: wait for them before reading anything. Null: no copies are running.
  CopyStream* copies = nullptr;
  absl::Status staged;  // An error means that there is nothing to write.
};

bool is_model(const Slice& slice);  // Key "model.*".

enum class Copy {
  kWhereNeeded,  // The parts may be the live tensors themselves.
  kAlways,       // The parts are separate buffers.
};

// Stages this rank's part of a save on the CPU. Replaces `parts`, and reuses its buffers where they fit. `cast`: the
// type of floating-point tensors, except those that narrowed_type() excludes; `warnings` gets a line for each tensor
// with values that it cannot hold. `copies` copies the tensors on its device; they are in `parts` once it has ended.
void stage(const std::vector<Slice>& slices, CheckpointKind kind, std::optional<at::ScalarType> cast, Copy copy,
           std::vector<Staged>& parts, CopyStream* copies = nullptr, std::vector<std::string>* warnings = nullptr);

// Returns the type that checkpoint.export_dtype names.
at::ScalarType export_type(const config::CheckpointSection& config);

}  // namespace titan::checkpoint
