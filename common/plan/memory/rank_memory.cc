#include "common/plan/memory/rank_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/flux_rows.h"
#include "common/plan/memory/tower.h"

namespace titan::memory {
namespace {

using mesh::Axis;
using mesh::Reshard;

constexpr int64_t kInteger = 8;  // Bytes.

int64_t bytes_of(const std::string& type) { return type == "float64" ? 8 : type == "float32" ? 4 : 2; }

// Returns the bytes per element of weights that are not trained.
int64_t frozen_bytes(const config::JobConfig& config, int64_t compute) {
  const std::string type = config::frozen_dtype(config);
  return type.empty() ? compute : bytes_of(type);
}

ElementBytes element_bytes(const config::JobConfig& config) {
  const int64_t compute = activation_shape(config).element_bytes;
  const int64_t master = bytes_of(config.training.dtype);
  return {.compute = compute,
          .master = master,
          .frozen = frozen_bytes(config, compute),
          .reduce = master == 8 ? 8 : bytes_of(config.training.mixed_precision_reduce)};
}

// Returns the bytes of one of Adam's or AdamW's moments for a unit's shard.
int64_t state_bytes(const RankMemory& rank, const Unit& unit) {
  const std::string& type = rank.config.optimizer.state_dtype;
  if (type == "8bit") return unit.coded;
  return (unit.shard - unit.muon) * (type == "auto" ? rank.bytes.master : bytes_of(type));
}

ShardedUnit* add_unit(RankMemory& rank, const Unit& unit, Reshard keep) {
  const bool offloaded = rank.config.training.enable_cpu_offload;
  const bool aliased = unit.ranks == 1 && gathered_bytes(rank, unit) == stored_bytes(rank, unit) && !offloaded;
  const int64_t shard = unit.shard * stored_bytes(rank, unit);
  const bool trained = unit.kind == ParameterKind::kTrained;
  // Two moments for Adam and AdamW, one for Muon.
  const int64_t states = trained ? 2 * state_bytes(rank, unit) + unit.muon * rank.bytes.master : 0;
  if (offloaded) {
    rank.host += (trained ? 2 : 1) * shard + states;
  } else {
    rank.now.weights += shard;
    if (trained) rank.now.gradients += shard;
    rank.now.optimizer += states;
  }
  // With a memory budget a later step has the peak: the first one only plans the budget and saves nothing. Early
  // updates have freed the gradient shards by then.
  const bool freed = trained && steps_early(rank.config) && rank.config.activation_checkpoint.mode == "memory_budget";
  if (freed) rank.now.gradients -= shard;
  return rank.units
      .emplace_back(std::make_unique<ShardedUnit>(
          ShardedUnit{.unit = unit, .keep = keep, .aliased = aliased, .there = aliased, .freed = freed}))
      .get();
}

// Returns the trained share of the elements for which a block's backward pass computes gradients, as block_memory()
// counts them.
double trained_share(const EstimatedBlock& block) {
  int64_t elements = 0, all = 1;
  for (const ShardedUnit* one : block.units) elements += is_trained(*one) ? one->unit.whole : 0;
  for (const Moment& moment : block.memory.backward) all = std::max(all, moment.weight_gradients);
  return static_cast<double>(elements) / static_cast<double>(all);
}

// Returns the index of each block in the model.
std::map<std::string, size_t> places_of(const pipeline::PipelinePlan& plan) {
  std::map<std::string, size_t> places;
  for (const auto& stage : plan.split) {
    for (const std::string& name : stage) places.emplace(name, places.size());
  }
  return places;
}

// Adds tokens, labels and the rotations of positions, and the images among the tokens; or images, captions and their
// frozen encoders.
void add_rows(RankMemory& rank, const models::ModelSpec& spec, const mesh::Mesh& mesh) {
  const config::JobConfig& config = rank.config;
  if (spec.flux) {
    const auto encoders = job_encoders(config, *spec.flux);
    if (!encoders.ok()) return;  // peak_memory() gives no estimate.
    const RowMemory memory =
        row_memory(config, *spec.flux, *encoders, config.encoder.shard_t5 ? mesh.size(Axis::kFsdp) : 1);
    rank.now.weights += memory.encoders;
    rank.now.activations += memory.held;
    update_peak(rank, memory.making);
    return;
  }
  const int64_t rows = config.training.local_batch_size * config::accumulation_steps(config);
  const int64_t tokens = rows * config.training.seq_len / config.parallelism.context_parallel_degree;
  const int64_t wide = rank.bytes.compute == 8 ? 8 : 4;
  const int64_t turned = spec.attention == models::Attention::kLatent ? spec.qk_rope_head_dim : spec.head_dim;
  const std::optional<TowerMemory> tower = tower_memory(config, spec);
  const bool rotates_tokens = tower && tower->rotates_tokens;
  rank.now.buffers += (rotates_tokens ? tokens : config.training.seq_len) * turned * wide;
  rank.now.activations += 2 * tokens * kInteger;  // Tokens and labels.
  if (tower)
    rank.now.activations += rows / microbatch_rows(config) * tower->held + tokens * kInteger;  // And places of images.
}

void add_blocks(RankMemory& rank, const models::ModelSpec& spec, const pipeline::PipelinePlan& plan,
                const mesh::Mesh& mesh, int place) {
  const std::optional<models::AdapterSpec> adapters = config::adapters_of(rank.config);
  rank.muon_round = muon_round(spec, mesh, rank.config.optimizer, adapters);
  const std::map<std::string, std::vector<Unit>> units = units_of_blocks(rank.config, spec, mesh);
  if (adapters) rank.unpacked = largest_packed(spec, mesh, *adapters) * rank.bytes.compute;
  const std::vector<BlockMemory> memory = block_memory(rank.config, spec, mesh);
  const std::vector<models::BlockActivations> kept = block_activations(rank.config, spec);
  const std::map<std::string, size_t> places = places_of(plan);
  const config::ActivationCheckpointSection& ac = rank.config.activation_checkpoint;
  size_t count = 0;
  for (const int stage : plan.schedule.stages_of(place)) count += plan.split[stage].size();
  const bool gathers = mesh.size(Axis::kFsdp) > 1 || mesh.size(Axis::kExpertFsdp) > 1;
  const std::vector<Reshard> keeps =
      mesh::reshard_plan(rank.config.parallelism.fsdp_reshard_after_forward, count, gathers,
                         /*pipelined=*/plan.schedule.ranks > 1)
          .value_or(std::vector<Reshard>(count, Reshard::kAfterForward));
  size_t position = 0;
  LayerCounter layers(spec);
  const size_t first = tower_blocks(spec).size();  // Index of the embedding, or of what takes its place.
  ShardedUnit* embedding = nullptr;
  for (const int stage : plan.schedule.stages_of(place)) {
    for (const std::string& name : plan.split[stage]) {
      const Reshard keep = keeps[position++];
      const size_t index = places.at(name);
      const bool embeds = index == first, last = index + 1 == memory.size();
      EstimatedBlock block{
          .memory = memory[index],
          .units = {},
          .kept = memory[index].graph,
          .recomputed = false,
          .reads_weights = !embeds || spec.flux.has_value()};  // An embedding's gradient needs only tokens.
      for (const Unit& unit : units.at(name)) block.units.push_back(add_unit(rank, unit, keep));
      if (embeds) embedding = block.units.front();
      if (adapters) block.trained = trained_share(block);
      if (last && spec.tied_embeddings) {
        if (embedding != nullptr) {
          ++embedding->users;
          embedding->keep = std::max(embedding->keep, keep);
          block.units.push_back(embedding);
        } else {
          rank.shared = add_unit(rank, units.at("tok_embeddings").front(), keep);
          block.units.push_back(rank.shared);
        }
      }
      if (const auto layer = layers.next(index)) {
        block.kept = kept_bytes(kept[index], ac, *layer);
        block.recomputed = is_recomputed(ac, *layer);
      }
      rank.stages[stage].push_back(std::move(block));
    }
  }
  const bool head_elsewhere = rank.stages.count(plan.schedule.stages - 1) == 0;
  if (spec.tied_embeddings && embedding != nullptr && head_elsewhere) rank.shared = embedding;
  add_rows(rank, spec, mesh);
  // Two messages of other stages may be received ahead.
  if (plan.schedule.ranks > 1) rank.now.buffers += 2 * memory.back().input;
}

}  // namespace

RankMemory make_rank_memory(const config::JobConfig& config, const models::ModelSpec& spec,
                            const pipeline::PipelinePlan& plan, const mesh::Mesh& mesh, int place) {
  const ElementBytes bytes = element_bytes(config);
  RankMemory rank{
      .config = config,
      .bytes = bytes,
      .rounds_once = bytes.reduce > bytes.master,
      .replicas = config.parallelism.data_parallel_replicate_degree > 1,
      .once = plan.schedule.ranks > 1 && config.parallelism.fsdp_reshard_after_forward != "always",
  };
  add_blocks(rank, spec, plan, mesh, place);
  return rank;
}

bool is_trained(const ShardedUnit& one) { return one.unit.kind == ParameterKind::kTrained; }

bool steps_early(const config::JobConfig& config) {
  return config.optimizer.early_step_in_backward && !config.training.enable_cpu_offload;
}

int64_t gathered_bytes(const RankMemory& rank, const Unit& unit) {
  return unit.kind == ParameterKind::kPacked || unit.float8 ? 1 : rank.bytes.compute;
}

int64_t stored_bytes(const RankMemory& rank, const Unit& unit) {
  return unit.kind == ParameterKind::kTrained  ? rank.bytes.master
         : unit.kind == ParameterKind::kFrozen ? rank.bytes.frozen
                                               : 1;
}

void update_peak(RankMemory& rank, int64_t activations, int64_t gradients) {
  Parts now = rank.now;
  now.activations += activations;
  now.gradients += gradients;
  if (now.total() > rank.peak.total()) rank.peak = now;
}

}  // namespace titan::memory
