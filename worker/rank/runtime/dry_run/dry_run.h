#pragma once

#include <optional>
#include <string>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/options.h"

namespace titan::runtime {

// comm.mode = "fake_backend": builds rank job.rank of a world of any size on tensors without memory and runs one
// optimizer step without peers. The result describes what the rank would hold and send:
//   rank, world, model, flavor, coordinate {pp, dp_replicate, ...}
//   shards_on_host: whether CPU offload is on; the bytes below count the shards anyway
//   parameters: {model, here (of this rank's stages, after tensor and expert parallelism), shard (of this rank),
//                trained}
//   bytes: {parameters, gradients, optimizer, buffers, block_edges (peak of activations between blocks kept for the
//           backward pass), standing (everything before the step), peak (everything during the step)}
//   flops: {products, attention (both of the blocks, with recomputation), encoders (of the objective)} of one step; a
//          multiplication and an addition are two
//   activations: {stage of this rank: bytes that it holds for one microbatch until its backward pass}
//   collectives: {"group/operation": {calls, bytes}} of one step
//   schedule: {name, ranks, stages, microbatches, runs (per step), bubble, peak_activations, stages_here,
//              text (titanctl's drawing)}
//   seconds: duration of the dry run
// Routed tokens are split evenly over experts, and each row is assumed to be one document. Throws exceptions that
// current_failure() understands. `spec`, if given, takes the place of the configuration's model, of the same family.
nlohmann::ordered_json dry_run(const RankJob& job, const std::optional<models::ModelSpec>& spec = std::nullopt);

// Formats the result as text for people.
std::string describe_dry_run(const nlohmann::ordered_json& result);

}  // namespace titan::runtime
