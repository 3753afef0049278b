#include "common/plan/memory/estimate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/memory/units.h"
#include "common/plan/mesh/reshard.h"

namespace titan::memory {
namespace {

using mesh::Axis;
using mesh::Keep;
using pipeline::Action;
using pipeline::Work;

int64_t bytes_of(const std::string& type) { return type == "float64" ? 8 : type == "float32" ? 4 : 2; }

// Of a weight that is not trained.
int64_t frozen_bytes(const config::JobConfig& config, int64_t compute) {
  const std::string type = config::frozen_dtype(config);
  return type.empty() ? compute : bytes_of(type);
}

struct ShardedUnit {
  Unit unit;
  Keep keep = Keep::kNothing;
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

// One rank through a step, as Executor, Stage and ShardUnit drive it. Every method notes the peak where it holds most.
class Walk {
 public:
  Walk(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan,
       const mesh::Mesh& mesh, int place)
      : config_(config),
        plan_(plan),
        place_(place),
        e_(activation_shape(config).element_bytes),
        master_(bytes_of(config.training.dtype)),
        frozen_(frozen_bytes(config, e_)),
        reduce_(master_ == 8 ? 8 : bytes_of(config.training.mixed_precision_reduce)),
        rounds_once_(reduce_ > master_),
        replicas_(config.parallelism.data_parallel_replicate_degree > 1),
        once_(plan.schedule.ranks > 1 && config.parallelism.fsdp_reshard_after_forward != "always") {
    build(spec, mesh);
  }

  Parts run() {
    // What a second run adds to the first, all others add.
    const int64_t runs = std::min<int64_t>(2, config::accumulation_steps(config_));
    for (int64_t i = 0; i < runs; ++i) run_schedule(/*last=*/i + 1 == runs);
    finish();
    exchange_matrices();
    return peak_;
  }

  int64_t host() const { return host_ + most_host_sums_; }

 private:
  // A round of Muon's matrices as the next one arrives: what came, the matrix, its turned copy, product and result.
  void exchange_matrices() {
    constexpr int64_t kTensors = 5;
    if (muon_round_ == 0) return;
    for (const auto& one : units_) free_gathered(*one);
    now_.buffers += kTensors * muon_round_ * (master_ == 8 ? 8 : 2);
    hold();
  }

  void build(const models::ModelSpec& spec, const mesh::Mesh& mesh);
  ShardedUnit* add_unit(const Unit& unit, Keep keep);
  static double trained_share(const Block& block);

  void run_schedule(bool last);
  void forward(int stage);
  void backward(int stage, bool split, bool last);
  void weight_gradient(int stage, bool last);
  void reduce(int stage);
  void finish();

  void begin_unshard(const Block& block);
  void unshard(const Block& block);
  void reshard(const Block& block, bool after_forward);
  void free_gathered(ShardedUnit& one);
  void run_back(const Block& block, bool split);
  void deliver(const Block& block, bool last);
  void add_gradients(ShardedUnit& one, bool last);
  void open_sum(ShardedUnit& one);
  void round_sum(ShardedUnit& one);
  void begin_reduce(ShardedUnit& one, bool whole_sum);
  void finish_reduction();
  void complete(ShardedUnit& one);

  // Bytes of an element of a unit where it is gathered, and where it is kept.
  int64_t gathered(const Unit& unit) const { return unit.kind == Kind::kPacked || unit.float8 ? 1 : e_; }
  int64_t kept(const Unit& unit) const {
    return unit.kind == Kind::kTrained ? master_ : unit.kind == Kind::kFrozen ? frozen_ : 1;
  }
  static bool trained(const ShardedUnit& one) { return one.unit.kind == Kind::kTrained; }
  bool steps_early() const { return config_.optimizer.early_step_in_backward && !config_.training.enable_cpu_offload; }
  // Of one moment of Adam's or AdamW's in a unit's shard.
  int64_t state_bytes(const Unit& unit) const {
    const std::string& type = config_.optimizer.state_dtype;
    if (type == "8bit") return unit.coded;
    return (unit.shard - unit.muon) * (type == "auto" ? master_ : bytes_of(type));
  }
  // Notes a moment at which this lives beside what is counted already.
  void hold(int64_t activations = 0, int64_t gradients = 0) {
    Parts now = now_;
    now.activations += activations;
    now.gradients += gradients;
    if (now.total() > peak_.total()) peak_ = now;
  }

  const config::JobConfig& config_;
  const pipeline::Plan& plan_;
  const int place_;
  // Bytes of an element that is computed with, kept, kept of what is not trained, and summed over ranks.
  const int64_t e_, master_, frozen_, reduce_;
  const bool rounds_once_;  // Gradients are summed in the wire's type, which holds more than the shard's.
  const bool replicas_;     // Add to that sum.
  const bool once_;         // Gradients are reduced once a step.
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::map<int, std::vector<Block>> stages_;
  ShardedUnit* shared_ = nullptr;  // The embedding whose tied head is on another rank of the pipeline, or that head's.
  std::vector<ShardedUnit*> reducing_;
  bool reducing_last_ = false;
  int64_t host_ = 0;
  int64_t host_sums_ = 0, most_host_sums_ = 0;  // Of offloaded shards, in the wire's type.
  int64_t muon_round_ = 0;                      // Elements.
  int64_t unpacked_ = 0;                        // Bytes of a packed matrix while it is multiplied by.
  Parts now_, peak_;
};

ShardedUnit* Walk::add_unit(const Unit& unit, Keep keep) {
  const bool offloaded = config_.training.enable_cpu_offload;
  const bool aliased = unit.ranks == 1 && gathered(unit) == kept(unit) && !offloaded;
  const int64_t shard = unit.shard * kept(unit);
  const bool trained = unit.kind == Kind::kTrained;
  // Adam's and AdamW's two moments, Muon's one.
  const int64_t states = trained ? 2 * state_bytes(unit) + unit.muon * master_ : 0;
  if (offloaded) {
    host_ += (trained ? 2 : 1) * shard + states;
  } else {
    now_.weights += shard;
    if (trained) now_.gradients += shard;
    now_.optimizer += states;
  }
  // The first step, which begins with all gradients' shards, plans a budget and keeps nothing.
  const bool freed = trained && steps_early() && config_.activation_checkpoint.mode == "memory_budget";
  if (freed) now_.gradients -= shard;
  return units_
      .emplace_back(std::make_unique<ShardedUnit>(
          ShardedUnit{.unit = unit, .keep = keep, .aliased = aliased, .there = aliased, .freed = freed}))
      .get();
}

// Of the elements that the backward pass of a block brings gradients for, as block_memory() counts them.
double Walk::trained_share(const Block& block) {
  int64_t elements = 0, all = 1;
  for (const ShardedUnit* one : block.units) elements += trained(*one) ? one->unit.whole : 0;
  for (const Moment& moment : block.memory.backward) all = std::max(all, moment.weight_gradients);
  return static_cast<double>(elements) / static_cast<double>(all);
}

void Walk::build(const models::ModelSpec& spec, const mesh::Mesh& mesh) {
  const std::optional<models::AdapterSpec> adapters = config::adapters_of(config_);
  muon_round_ = muon_round(spec, mesh, config_.optimizer, adapters);
  const std::map<std::string, std::vector<Unit>> units = units_of_blocks(config_, spec, mesh);
  if (adapters) unpacked_ = largest_packed(spec, mesh, *adapters) * e_;
  const std::vector<BlockMemory> memory = block_memory(config_, spec, mesh);
  const std::vector<models::BlockActivations> kept = models::block_activations(spec, activation_shape(config_));
  const config::ActivationCheckpoint& ac = config_.activation_checkpoint;
  size_t count = 0;
  for (const int stage : plan_.schedule.stages_of(place_)) count += plan_.split[stage].size();
  const bool gathers = mesh.size(Axis::kFsdp) > 1 || mesh.size(Axis::kExpertFsdp) > 1;
  const std::vector<Keep> keeps = mesh::keep_plan(config_.parallelism.fsdp_reshard_after_forward, count, gathers,
                                                  /*pipelined=*/plan_.schedule.ranks > 1)
                                      .value_or(std::vector<Keep>(count, Keep::kNothing));
  size_t position = 0;
  int layer = 0;
  ShardedUnit* embedding = nullptr;
  for (const int stage : plan_.schedule.stages_of(place_)) {
    for (const std::string& name : plan_.split[stage]) {
      const Keep keep = keeps[position++];
      const bool first = name == "tok_embeddings", last = name == "output";
      const size_t index = first ? 0 : last ? memory.size() - 1 : std::stoul(name.substr(7)) + 1;
      Block block{.memory = memory[index],
                  .units = {},
                  .kept = kept[index].graph,
                  .recomputed = false,
                  .reads_weights = !first};
      for (const Unit& unit : units.at(name)) block.units.push_back(add_unit(unit, keep));
      if (first) embedding = block.units.front();
      if (adapters) block.trained = trained_share(block);
      if (last && spec.tied_embeddings) {
        if (embedding != nullptr) {
          ++embedding->users;
          embedding->keep = std::max(embedding->keep, keep);
          block.units.push_back(embedding);
        } else {
          shared_ = add_unit(units.at("tok_embeddings").front(), keep);
          block.units.push_back(shared_);
        }
      }
      if (!first && !last) {
        const LayerPlace place{.number = ++layer, .index = static_cast<int64_t>(index) - 1};
        block.kept = kept_bytes(kept[index], ac, place);
        block.recomputed = is_recomputed(ac, place);
      }
      stages_[stage].push_back(std::move(block));
    }
  }
  const bool head_elsewhere = stages_.count(plan_.schedule.stages - 1) == 0;
  if (spec.tied_embeddings && embedding != nullptr && head_elsewhere) shared_ = embedding;
  const int64_t rows = config_.training.local_batch_size * config_.training.seq_len;
  const int64_t wide = e_ == 8 ? 8 : 4;
  now_.buffers += config_.training.seq_len * wide *
                  (spec.attention == models::Attention::kLatent ? spec.qk_rope_head_dim : spec.head_dim);
  now_.activations += rows / config_.parallelism.context_parallel_degree * 2 * 8;  // Tokens and labels.
  // Two messages of other stages may arrive ahead.
  if (plan_.schedule.ranks > 1) now_.buffers += 2 * memory.back().input;
}

void Walk::begin_unshard(const Block& block) {
  for (ShardedUnit* one : block.units) {
    if (one->there || one->coming) continue;
    one->coming = true;
    if (one->unit.direct) {
      now_.weights += one->unit.padded() * gathered(one->unit);
    } else if (one->unit.ranks > 1) {
      now_.buffers += one->unit.padded() * gathered(one->unit);
    }
  }
  hold();
}

void Walk::unshard(const Block& block) {
  for (ShardedUnit* one : block.units) {
    if (one->there) continue;
    begin_unshard(block);
    if (!one->unit.direct) {
      now_.weights += one->unit.whole * gathered(one->unit);
      hold();
      if (one->unit.ranks > 1) now_.buffers -= one->unit.padded() * gathered(one->unit);
    }
    one->there = true;
    one->coming = false;
  }
}

void Walk::free_gathered(ShardedUnit& one) {
  if (!one.there || one.aliased) return;
  one.there = false;
  now_.weights -= (one.unit.direct ? one.unit.padded() : one.unit.whole) * gathered(one.unit);
}

void Walk::reshard(const Block& block, bool after_forward) {
  for (ShardedUnit* one : block.units) {
    const bool stays = after_forward ? one->keep != Keep::kNothing : one->keep == Keep::kUntilStepEnd;
    if (!stays) free_gathered(*one);
  }
}

void Walk::forward(int stage) {
  std::vector<Block>& blocks = stages_.at(stage);
  begin_unshard(blocks.front());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    unshard(block);
    if (i + 1 < blocks.size()) begin_unshard(blocks[i + 1]);
    hold((block.recomputed ? block.memory.first_pass + block.kept : block.memory.forward) + unpacked_);
    now_.activations += block.memory.input + block.kept;
    reshard(block, /*after_forward=*/true);
  }
}

// The graph of one block, from the gradient of its output to that of its input.
void Walk::run_back(const Block& block, bool split) {
  now_.activations -= block.kept;
  if (block.recomputed) hold(block.memory.forward - block.memory.input + unpacked_);
  const bool deferred = split && block.memory.defers;
  for (const Moment& moment : block.memory.backward) {
    const auto gradients = static_cast<int64_t>(block.trained * static_cast<double>(moment.weight_gradients));
    hold(moment.activations + unpacked_, deferred ? 0 : gradients * e_);
  }
  now_.activations -= block.memory.output;  // Its gradient; that of the input takes the input's place.
}

void Walk::backward(int stage, bool split, bool last) {
  std::vector<Block>& blocks = stages_.at(stage);
  const auto needs = [](const Block& block) { return block.reads_weights || block.recomputed; };
  if (needs(blocks.back())) begin_unshard(blocks.back());
  now_.activations += blocks.back().memory.output;
  for (size_t i = blocks.size(); i-- > 0;) {
    const Block& block = blocks[i];
    if (needs(block)) unshard(block);
    if (i > 0 && blocks[i - 1].reads_weights) begin_unshard(blocks[i - 1]);
    run_back(block, split);
    if (split) {
      now_.activations += block.memory.for_weights;
      // Not a product: its gradient is there at once.
      if (!block.reads_weights && once_) deliver(block, last);
    } else {
      deliver(block, last);
    }
    reshard(block, /*after_forward=*/false);
  }
  now_.activations -= blocks.front().memory.input;
  finish_reduction();
}

void Walk::weight_gradient(int stage, bool last) {
  std::vector<Block>& blocks = stages_.at(stage);
  for (size_t i = blocks.size(); i-- > 0;) {
    const Block& block = blocks[i];
    if (!block.reads_weights && once_) continue;
    now_.activations -= block.memory.for_weights;
    deliver(block, last);
  }
  finish_reduction();
}

// A block's whole gradients are there, in the type that is computed with.
void Walk::deliver(const Block& block, bool last) {
  for (const ShardedUnit* one : block.units) now_.gradients += trained(*one) ? one->unit.whole * e_ : 0;
  hold();
  if (!once_) finish_reduction();
  for (ShardedUnit* one : block.units) {
    if (!trained(*one)) continue;
    const bool sums = once_ || one->unit.ranks == 1 || one->users > 1;
    if (sums) add_gradients(*one, last && !once_);
    if (once_) continue;
    if (one->users > 1 && (!last || ++one->brought < one->users)) continue;  // Waits for another block, or pass.
    if (one->unit.ranks > 1) begin_reduce(*one, sums);
    reducing_.push_back(one);
  }
  reducing_last_ = last;
}

// Beside the gradient shard, where it lies.
void Walk::open_sum(ShardedUnit& one) {
  if (std::exchange(one.wide, true)) return;
  const int64_t bytes = one.unit.shard * reduce_;
  if (!config_.training.enable_cpu_offload) {
    now_.gradients += bytes;
    return;
  }
  host_sums_ += bytes;
  most_host_sums_ = std::max(most_host_sums_, host_sums_);
}

void Walk::round_sum(ShardedUnit& one) {
  if (!std::exchange(one.wide, false)) return;
  if (std::exchange(one.freed, false)) now_.gradients += one.unit.shard * master_;
  hold();
  (config_.training.enable_cpu_offload ? host_sums_ : now_.gradients) -= one.unit.shard * reduce_;
}

// `last`: of the step. Its only gradients are rounded on their way.
void Walk::add_gradients(ShardedUnit& one, bool last) {
  const bool only = last && one.users == 1 && !one.wide && !replicas_;
  if (one.unit.ranks == 1 && rounds_once_ && !only) {
    open_sum(one);
    hold();
  } else if (one.unit.ranks == 1) {
    if (std::exchange(one.freed, false)) now_.gradients += one.unit.shard * master_;
    hold();
  } else if (!std::exchange(one.summed, true)) {
    now_.gradients += one.unit.whole * reduce_;
    if (e_ != reduce_) hold();
  }
  now_.gradients -= one.unit.whole * e_;
}

void Walk::begin_reduce(ShardedUnit& one, bool whole_sum) {
  now_.buffers += one.unit.padded() * reduce_;
  hold();
  now_.gradients -= one.unit.whole * (whole_sum ? reduce_ : e_);
  one.summed = false;
  now_.buffers += one.unit.shard * reduce_;
  hold();
}

void Walk::finish_reduction() {
  for (ShardedUnit* one : std::exchange(reducing_, {})) {
    if (one->unit.ranks > 1) {
      now_.buffers -= one->unit.padded() * reduce_;
      if (rounds_once_) {
        if (one->wide) hold();
        now_.buffers -= one->unit.shard * reduce_;
        open_sum(*one);  // What arrived, where it is the first.
      } else {
        if (std::exchange(one->freed, false)) now_.gradients += one->unit.shard * master_;
        hold();
        now_.buffers -= one->unit.shard * reduce_;
      }
    }
    if (!reducing_last_) continue;
    if (!replicas_ || steps_early()) round_sum(*one);
    complete(*one);
  }
}

void Walk::complete(ShardedUnit& one) {
  if (!steps_early() || one.freed) return;
  one.freed = true;
  now_.gradients -= one.unit.shard * master_;
}

void Walk::reduce(int stage) {
  std::vector<Block>& blocks = stages_.at(stage);
  for (size_t i = blocks.size(); i-- > 0;) {
    finish_reduction();
    for (ShardedUnit* one : blocks[i].units) {
      if (!trained(*one)) continue;
      if (one->unit.ranks > 1) begin_reduce(*one, /*whole_sum=*/true);
      reducing_.push_back(one);
    }
    reducing_last_ = true;
  }
  finish_reduction();
}

void Walk::run_schedule(bool last) {
  std::map<int, int> open;  // Passes that bring weight gradients and have not begun, by stage.
  const auto brings = [](Work work) { return work == Work::kBackward || work == Work::kWeightGradient; };
  for (const pipeline::Step& step : plan_.schedule.steps[place_]) {
    for (const Action& action : step.actions) open[action.stage] += brings(action.work);
  }
  std::set<int> reduced;
  for (const pipeline::Step& step : plan_.schedule.steps[place_]) {
    for (const Action& action : step.actions) {
      const bool ends = brings(action.work) && --open[action.stage] == 0 && last;
      switch (action.work) {
        case Work::kForward:
          forward(action.stage);
          break;
        case Work::kBackward:
          backward(action.stage, /*split=*/false, ends);
          break;
        case Work::kInputGradient:
          backward(action.stage, /*split=*/true, ends);
          break;
        case Work::kWeightGradient:
          weight_gradient(action.stage, ends);
          break;
        case Work::kReduce:
          if (last && once_ && reduced.insert(action.stage).second) reduce(action.stage);
          break;
      }
    }
  }
  for (const auto& [stage, blocks] : stages_) {
    if (last && once_ && reduced.insert(stage).second) reduce(stage);
  }
}

// Sums over replicas in another type than the shard's are made beside it. A tied embedding's two ranks exchange their
// gradients once the gathered weights are gone: a copy goes, and another comes.
void Walk::finish() {
  const bool in_place = rounds_once_ && !config_.training.enable_cpu_offload;  // They are there.
  if (reduce_ != master_ && replicas_ && !in_place) {
    int64_t copies = 0;
    for (const auto& one : units_) copies += one->freed || !trained(*one) ? 0 : one->unit.shard * reduce_;
    hold(0, copies);
  }
  for (const auto& one : units_) round_sum(*one);
  if (shared_ == nullptr || !trained(*shared_)) return;
  for (const auto& one : units_) free_gathered(*one);
  hold(0, 2 * shared_->unit.shard * master_);
}

}  // namespace

Estimate peak_memory_at(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan,
                        int place) {
  const mesh::Mesh mesh = mesh::Mesh::create(config::degrees_of(config.parallelism), config.resources.ranks).value();
  Walk walk(config, spec, plan, mesh, place);
  const Parts peak = walk.run();
  return {.peak = peak, .host = walk.host(), .pipeline = place};
}

std::optional<Estimate> peak_memory(const config::JobConfig& config) {
  const absl::StatusOr<models::ModelSpec> spec = config::chosen_model(config.model);
  if (!spec.ok()) return std::nullopt;
  const absl::StatusOr<pipeline::Plan> plan = pipeline::plan(config::pipeline_options(config, spec->n_layers));
  if (!plan.ok() || plan->schedule.steps.empty()) return std::nullopt;
  std::optional<Estimate> fullest;
  for (int place = 0; place < plan->schedule.ranks; ++place) {
    const Estimate one = peak_memory_at(config, *spec, *plan, place);
    if (!fullest || one.peak.total() > fullest->peak.total()) fullest = one;
  }
  return fullest;
}

}  // namespace titan::memory
