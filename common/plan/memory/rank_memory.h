#pragma once

// Counts the memory of one rank at each moment of a step, and its peak.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/memory/estimate.h"
#include "common/plan/memory/units.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/mesh/reshard.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::memory {

struct ShardedUnit {
  Unit unit;
  mesh::Reshard keep = mesh::Reshard::kAfterForward;
  int users = 1;         // Blocks that contribute gradients.
  bool aliased = false;  // The weights are the shard itself.
  bool there = false;    // Gathered.
  bool coming = false;   // Being gathered.
  bool summed = false;   // An unsharded sum of gradients waits for its reduction.
  bool freed = false;    // The gradient shard is freed, after an early step.
  bool wide = false;     // Its sum exists in the reduce type, unrounded.
  int brought = 0;       // Users that have contributed their last gradients.
};

struct EstimatedBlock {
  BlockMemory memory;
  std::vector<ShardedUnit*> units;
  int64_t kept = 0;    // Bytes saved between the passes in addition to the input.
  double trained = 1;  // Share of its weights' elements that have gradients.
  bool recomputed = false;
  bool reads_weights = true;  // In the backward pass.
};

// Bytes per element in computation, in shards, in shards of frozen weights, and in reductions.
struct ElementBytes {
  int64_t compute = 0;
  int64_t master = 0;
  int64_t frozen = 0;
  int64_t reduce = 0;
};

struct RankMemory {
  const config::JobConfig& config;
  const ElementBytes bytes;
  const bool rounds_once;  // Gradients are summed in the reduce type, which is wider than the shard's.
  const bool replicas;     // Gradients are also summed over replicas.
  const bool once;         // Gradients are reduced once per step.
  std::vector<std::unique_ptr<ShardedUnit>> units;
  std::map<int, std::vector<EstimatedBlock>> stages;
  ShardedUnit* shared = nullptr;  // Embedding whose tied head is on another pipeline rank, or that head's copy of it;
                                  // else null.
  std::vector<ShardedUnit*> reducing;
  bool reducing_last = false;
  int64_t host = 0;
  int64_t host_sums = 0, peak_host_sums = 0;  // Sums for offloaded shards, in the reduce type.
  int64_t muon_round = 0;                     // Elements.
  int64_t unpacked = 0;                       // Bytes of a packed matrix while it is unpacked for a matmul.
  Parts now, peak;
};

// Returns the memory that the rank at `place` of the pipeline uses before its first step. `config` must outlive it.
RankMemory make_rank_memory(const config::JobConfig& config, const models::ModelSpec& spec,
                            const pipeline::PipelinePlan& plan, const mesh::Mesh& mesh, int place);

bool is_trained(const ShardedUnit& one);
// Whether each unit is updated during the backward pass, after which its gradient shard is freed.
bool steps_early(const config::JobConfig& config);

// Return the bytes per element of a unit when gathered, and when stored.
int64_t gathered_bytes(const RankMemory& rank, const Unit& unit);
int64_t stored_bytes(const RankMemory& rank, const Unit& unit);

// Records the peak if the current bytes and these additional ones exceed it.
void update_peak(RankMemory& rank, int64_t activations = 0, int64_t gradients = 0);

}  // namespace titan::memory
