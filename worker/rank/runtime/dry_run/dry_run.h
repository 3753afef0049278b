#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "worker/rank/runtime/options.h"

namespace titan::runtime {

// comm.mode = "fake_backend": builds rank job.rank of a world of any size on tensors without memory and runs one
// optimizer step without peers. The result says what the rank would hold and send:
//   rank, world, model, flavor, coordinate {pp, dp_replicate, ...}
//   shards_on_host: with CPU offload; the bytes below count them all the same
//   parameters: {model, here (of this rank's stages, after tensor and expert parallelism), shard (of this rank)}
//   bytes: {parameters, gradients, optimizer, buffers, block_edges (activations between blocks kept for the backward
//           pass, at most), peak (everything, at most, during the step)}
//   activations: {stage of this rank: bytes that it keeps of one microbatch until its backward pass}
//   collectives: {"group/operation": {calls, bytes}} of one step
//   schedule: {name, ranks, stages, microbatches, bubble, peak_activations, stages_here, text (titanctl's drawing)}
//   seconds: what the dry run took
// Routed tokens are dealt evenly over experts; documents are taken to be one a row. Throws what current_failure()
// understands.
nlohmann::ordered_json dry_run(const RankJob& job);

// The result for people.
std::string describe_dry_run(const nlohmann::ordered_json& result);

}  // namespace titan::runtime
