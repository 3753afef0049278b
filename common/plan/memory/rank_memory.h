#pragma once

// Counts what one rank holds at a moment of a step, and what it held when it was fullest.

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
  int users = 1;         // Blocks that bring gradients.
  bool aliased = false;  // The weights are the shard itself.
  bool there = false;    // Gathered.
  bool coming = false;   // Being gathered.
  bool summed = false;   // Gradients wait, whole.
  bool freed = false;    // The gradient shard is, after an early step.
  bool wide = false;     // Its sum is there in the wire's type, unrounded.
  int brought = 0;       // Users that brought their last gradients.
};

struct Block {
  BlockMemory memory;
  std::vector<ShardedUnit*> units;
  int64_t kept = 0;    // Between the passes, beside the input.
  double trained = 1;  // Share of its weights' elements that have gradients.
  bool recomputed = false;
  bool reads_weights = true;  // In its backward pass.
};

// How many bytes an element takes where it is computed with, kept, kept and not trained, and summed over ranks.
struct ElementBytes {
  int64_t compute = 0;
  int64_t master = 0;
  int64_t frozen = 0;
  int64_t reduce = 0;
};

struct RankMemory {
  const config::JobConfig& config;
  const ElementBytes bytes;
  const bool rounds_once;  // Gradients are summed in the wire's type, which holds more than the shard's.
  const bool replicas;     // Add to that sum.
  const bool once;         // Gradients are reduced once a step.
  std::vector<std::unique_ptr<ShardedUnit>> units;
  std::map<int, std::vector<Block>> stages;
  ShardedUnit* shared = nullptr;  // The embedding whose tied head is on another rank of the pipeline, or that head's.
  std::vector<ShardedUnit*> reducing;
  bool reducing_last = false;
  int64_t host = 0;
  int64_t host_sums = 0, most_host_sums = 0;  // Of offloaded shards, in the wire's type.
  int64_t muon_round = 0;                     // Elements.
  int64_t unpacked = 0;                       // Bytes of a packed matrix while it is multiplied by.
  Parts now, peak;
};

// What the rank at `place` of the pipeline holds before its first step. `config` must outlive it.
RankMemory make_rank_memory(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan,
                            const mesh::Mesh& mesh, int place);

bool is_trained(const ShardedUnit& one);
// Whether each unit is updated in the backward pass, after which its gradient shard is freed.
bool steps_early(const config::JobConfig& config);

// Bytes of an element of a unit where it is gathered, and where it is kept.
int64_t gathered_bytes(const RankMemory& rank, const Unit& unit);
int64_t stored_bytes(const RankMemory& rank, const Unit& unit);

// Notes a moment at which this lives beside what is counted already.
void hold(RankMemory& rank, int64_t activations = 0, int64_t gradients = 0);

}  // namespace titan::memory
