#include "worker/rank/runtime/engine/sharded_model.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/nn/init.h"
#include "worker/rank/nn/nf4.h"
#include "worker/rank/parallel/activation_checkpoint.h"
#include "worker/rank/runtime/engine/device_draw.h"

namespace titan::runtime {

using mesh::Keep;
using parallel::ShardedParameter;
using parallel::ShardUnit;

// Parameters that are gathered and reduced together.
struct ShardedModel::UnitPlan {
  std::vector<nn::Parameter*> parameters;
  bool expert_mesh = false;
  int users = 1;
};

namespace {

// How checkpoints get at a state's numbers.
std::shared_ptr<const checkpoint::Form> form_of(const optim::SlotState::Named& state) {
  if (state.form == nullptr) return nullptr;
  return std::make_shared<checkpoint::Form>(
      checkpoint::Form{.shape = state.form->shape, .numbers = state.form->numbers, .kept = state.form->kept});
}

int64_t numel(const nn::Parameter& parameter) { return c10::multiply_integers(parameter.shape); }

// One parameter that outweighs all others together (the head's matrix beside its norm) is a unit of its own: it is
// gathered straight into its storage, while copying several parameters out of a gather buffer takes their memory twice
// for a moment. That is no more than the neighbours take together when blocks are alike, but a head can be far larger
// than a layer.
std::vector<std::vector<nn::Parameter*>> set_heaviest_apart(std::vector<nn::Parameter*> parameters) {
  int64_t total = 0;
  nn::Parameter* heaviest = nullptr;
  for (nn::Parameter* parameter : parameters) {
    total += numel(*parameter);
    if (heaviest == nullptr || numel(*parameter) > numel(*heaviest)) heaviest = parameter;
  }
  if (parameters.size() < 2 || 2 * numel(*heaviest) <= total) return {std::move(parameters)};
  const bool first = parameters.front() == heaviest;
  std::erase(parameters, heaviest);
  if (first) return {{heaviest}, std::move(parameters)};
  return {std::move(parameters), {heaviest}};
}

bool is_layer(const nn::Block& block) { return absl::StartsWith(block.name(), "layers."); }

// Products whose scales are found with other ranks are a block's collectives as any.
bool exchanges_scales(nn::Block& block) {
  const auto exchanges = [](const nn::Parameter& weight) { return nn::recipe_of(weight).exchanges_with_ranks(); };
  const std::vector<nn::Parameter*> shared = block.shared_parameters();
  return std::any_of(block.parameters().begin(), block.parameters().end(), exchanges) ||
         std::any_of(shared.begin(), shared.end(), [&](const nn::Parameter* weight) { return exchanges(*weight); });
}

// The blocks of each stage that lives here, as indices.
absl::StatusOr<std::vector<std::vector<size_t>>> blocks_by_stage(const model::Model& model,
                                                                 const std::optional<PipelineShare>& pipeline) {
  std::vector<std::vector<size_t>> stages;
  if (!pipeline) {
    stages.emplace_back(model.blocks.size());
    std::iota(stages[0].begin(), stages[0].end(), size_t{0});
    return stages;
  }
  for (const std::vector<std::string>& names : pipeline->stages) {
    std::vector<size_t>& stage = stages.emplace_back();
    for (const std::string& name : names) {
      const auto found = std::find_if(model.blocks.begin(), model.blocks.end(),
                                      [&](const auto& block) { return block->name() == name; });
      if (found == model.blocks.end()) {
        return absl::InvalidArgumentError(absl::StrCat("parallelism: the model has no block \"", name, "\""));
      }
      stage.push_back(static_cast<size_t>(found - model.blocks.begin()));
    }
  }
  return stages;
}

}  // namespace

PipelineShare share_of(const pipeline::Schedule& schedule, const pipeline::Split& split, int rank) {
  PipelineShare share;
  share.indices = schedule.stages_of(rank);
  for (const int index : share.indices) share.stages.push_back(split[static_cast<size_t>(index)]);
  share.count = schedule.stages;
  share.first_rank = schedule.rank_of(0);
  share.last_rank = schedule.rank_of(schedule.stages - 1);
  for (const pipeline::Step& step : schedule.steps[static_cast<size_t>(rank)]) {
    for (const pipeline::Action& action : step.actions) {
      share.splits_backward |= action.work == pipeline::Work::kInputGradient;
    }
  }
  return share;
}

const comm::Group* ShardedModel::group_if_any(mesh::Axis axis) const {
  return mesh_.mesh().size(axis) > 1 ? &mesh_.group(axis) : nullptr;
}

ShardUnit* ShardedModel::make_unit(const std::string& name, const UnitPlan& plan, Keep keep) {
  const mesh::Mesh& mesh = mesh_.mesh();
  const nn::Parameter& first = *plan.parameters.front();
  parallel::Precision precision = options_.precision;
  if (first.frozen) precision.master = options_.frozen;
  if (first.packed_row > 0) precision.master = precision.param = at::kByte;
  // More ranks than experts: every expert's matrices are cut along their own rows instead.
  const bool few_experts =
      plan.expert_mesh && mesh.size(mesh::Axis::kExpertFsdp) > plan.parameters.front()->shape.front();
  return units_
      .emplace_back(std::make_unique<ShardUnit>(
          name, plan.parameters,
          parallel::ShardUnitOptions{
              .shard_group = &mesh_.group(plan.expert_mesh ? mesh::Axis::kExpertFsdp : mesh::Axis::kFsdp),
              .replicate_group = &mesh_.group(mesh::Axis::kReplicate),
              .tensor_group = group_if_any(mesh::Axis::kTensor),
              .device = &device_,
              .precision = precision,
              .gather = travels_as_float8(first) ? options_.float8_gather.get() : nullptr,
              .keep = keep,
              .dim = few_experts ? 1 : 0,
              .users = plan.users,
              .offload = options_.cpu_offload}))
      .get();
}

bool ShardedModel::is_shared(const nn::Parameter& parameter) const {
  return std::any_of(model_.blocks.begin(), model_.blocks.end(), [&](const auto& block) {
    const std::vector<nn::Parameter*> shared = block->shared_parameters();
    return std::find(shared.begin(), shared.end(), &parameter) != shared.end();
  });
}

// Where another rank has a part of it; what another block reads too is read as numbers there.
bool ShardedModel::travels_as_float8(const nn::Parameter& parameter) const {
  return options_.float8_gather != nullptr && mesh_.mesh().size(mesh::Axis::kFsdp) > 1 && !is_shared(parameter) &&
         options_.as_float8(parameter);
}

// Those that are frozen, packed, trained, and trained but gathered as float8 apart: they travel in types of their own,
// and only what is trained has gradients.
void ShardedModel::add_units(const std::string& name, const std::vector<nn::Parameter*>& parameters, bool expert_mesh,
                             Keep keep, std::vector<ShardUnit*>& units) {
  std::map<std::tuple<bool, bool, bool>, std::vector<nn::Parameter*>> kinds;
  for (nn::Parameter* parameter : parameters) {
    kinds[{!parameter->frozen, parameter->packed_row > 0, travels_as_float8(*parameter)}].push_back(parameter);
  }
  for (auto& [kind, alike] : kinds) {
    if (expert_mesh) {
      units.push_back(make_unit(name, {std::move(alike), expert_mesh}, keep));
      continue;
    }
    for (std::vector<nn::Parameter*>& some : set_heaviest_apart(std::move(alike)))
      units.push_back(make_unit(name, {std::move(some)}, keep));
  }
}

// Experts are a unit of their own when they live on a mesh of their own, and so is every parameter that another block
// reads too. What travels in another type has units of its own.
std::vector<ShardUnit*> ShardedModel::make_units(nn::Block& block, Keep keep) {
  const bool expert_mesh = mesh_.mesh().size(mesh::Axis::kExpert) > 1;
  std::vector<nn::Parameter*> dense, experts;
  std::vector<ShardUnit*> units;
  for (nn::Parameter& parameter : block.parameters()) {
    if (is_shared(parameter)) {
      units.push_back(make_unit(block.name(), {{&parameter}}, keep));
    } else {
      (expert_mesh && parameter.expert ? experts : dense).push_back(&parameter);
    }
  }
  add_units(block.name(), dense, /*expert_mesh=*/false, keep, units);
  add_units(block.name() + ".experts", experts, /*expert_mesh=*/true, keep, units);
  return units;
}

ShardUnit* ShardedModel::unit_of(const nn::Parameter* parameter) const {
  for (const auto& unit : units_) {
    if (unit->parameters().front().parameter == parameter) return unit.get();  // Shared: the only one.
  }
  return nullptr;
}

// A block may read parameters that another declared. Where both are here they share a unit, whose gradients of both are
// reduced together; else this rank holds a copy of the unit, and the two ranks add their gradients.
void ShardedModel::add_tied_units(std::vector<std::vector<EngineBlock>>& stages, Keep keep) {
  for (auto& stage : stages) {
    for (EngineBlock& entry : stage) {
      for (nn::Parameter* shared : entry.block->shared_parameters()) {
        if (ShardUnit* owner = unit_of(shared)) {
          owner->share(keep);
          entry.units.push_back(owner);
          continue;
        }
        ShardUnit* copy = make_unit(entry.block->name() + ".tied", {{shared}}, keep);
        copy->parameters().front().primary = copy->parameters().front().leads = false;
        if (!copy->frozen()) tied_units_.push_back(copy);
        tied_peer_ = options_.pipeline->first_rank;
        entry.units.push_back(copy);
      }
    }
  }
  if (!tied_units_.empty() || !options_.pipeline) return;
  // The other end: the embedding is here, the head elsewhere reads it.
  for (const nn::Parameter* shared : model_.blocks.back()->shared_parameters()) {
    ShardUnit* owner = unit_of(shared);
    if (owner == nullptr || owner->users() > 1 || owner->frozen()) continue;
    tied_units_.push_back(owner);
    tied_peer_ = options_.pipeline->last_rank;
  }
}

// Over a pipeline only its two ends can share parameters: two ranks add the gradients of both.
absl::Status ShardedModel::check_shared() const {
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter* shared : block->shared_parameters()) {
      if (!shared->expert) continue;
      return absl::UnimplementedError(
          absl::StrCat("block ", block->name(), " shares ", shared->fqn, " of routed experts"));
    }
  }
  if (!options_.pipeline) return absl::OkStatus();
  const auto& first = model_.blocks.front();
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter* shared : block->shared_parameters()) {
      const bool from_first = std::any_of(first->parameters().begin(), first->parameters().end(),
                                          [&](const nn::Parameter& parameter) { return &parameter == shared; });
      if (from_first && block == model_.blocks.back()) continue;
      return absl::UnimplementedError(absl::StrCat(
          "parallelism.pipeline_parallel_degree: block ", block->name(), " shares ", shared->fqn,
          "; over a pipeline only the last block can share parameters, and only those of the first, ", first->name()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::create(model::Model model, const ShardingOptions& options,
                                                                   const comm::DeviceMesh& mesh,
                                                                   device::Device& device) {
  std::unique_ptr<ShardedModel> sharded(new ShardedModel(std::move(model), options, mesh, device));
  TITAN_RETURN_IF_ERROR(sharded->check_shared());
  const auto& blocks = sharded->model_.blocks;
  TITAN_ASSIGN_OR_RETURN(const auto stage_blocks, blocks_by_stage(sharded->model_, options.pipeline));
  std::vector<nn::Block*> layers;
  size_t count = 0;
  for (const auto& stage : stage_blocks) {
    count += stage.size();
    for (const size_t index : stage) {
      if (is_layer(*blocks[index])) layers.push_back(blocks[index].get());
    }
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<parallel::BlockCheckpoint> checkpoints,
                         parallel::checkpoint_plan(options.ac, layers));
  const bool gathers = mesh.mesh().size(mesh::Axis::kFsdp) > 1 || mesh.mesh().size(mesh::Axis::kExpertFsdp) > 1;
  TITAN_ASSIGN_OR_RETURN(const std::vector<Keep> keep,
                         mesh::keep_plan(options.reshard_after_forward, count, gathers, options.pipeline.has_value()));
  std::vector<std::vector<EngineBlock>> stages;
  size_t layer = 0;
  size_t position = 0;
  for (const auto& stage : stage_blocks) {
    std::vector<EngineBlock>& entries = stages.emplace_back();
    for (const size_t index : stage) {
      nn::Block& block = *blocks[index];
      entries.push_back({.block = &block,
                         .units = sharded->make_units(block, keep[position++]),
                         .checkpoint = is_layer(block) ? checkpoints[layer++] : parallel::BlockCheckpoint(),
                         .backward_reads_weights = block.backward_reads_weights()});
      block.init_buffers(device.torch_device(), options.precision.param);
      sharded->local_blocks_.push_back(&block);
    }
  }
  sharded->add_tied_units(stages, keep.empty() ? Keep::kNothing : keep.back());
  if (sharded->takes_graphs()) sharded->choose_graphs(stages);
  sharded->make_stages(std::move(stages));
  return sharded;
}

// Draws this rank's part where it lives: the same bits without a copy over the bus. False: the device cannot.
static bool draw_on_device(const ShardedParameter& placed, uint64_t seed, device::Device& device) {
  const nn::Parameter& parameter = *placed.parameter;
  const nn::Init::Kind kind = parameter.init.kind;
  if (kind != nn::Init::Kind::kTruncatedNormal && kind != nn::Init::Kind::kNormal) return false;
  at::Tensor target = placed.value;
  at::Tensor drawn = at::empty(target.sizes(), target.options().dtype(at::kFloat));
  if (!device.draw(normal_box(parameter, seed, placed.global_offset(), target.sizes().vec()), drawn)) return false;
  target.copy_(drawn);
  return true;
}

// A packed parameter is drawn as numbers first, some rows at a time.
static void draw_and_pack(const ShardedParameter& placed, uint64_t seed) {
  const std::vector<int64_t> offset = placed.global_offset();
  const int64_t columns = placed.parameter->shape[1], step = std::max<int64_t>(1, (1 << 22) / columns);
  for (int64_t first = 0; first < placed.rows; first += step) {
    const int64_t rows = std::min(step, placed.rows - first);
    const at::Tensor drawn = at::empty({rows, columns}, at::kFloat);
    nn::fill_box(*placed.parameter, seed, {offset[0] + first, offset[1]}, drawn);
    nn::nf4_pack(drawn, placed.value.narrow(0, first, rows));
  }
}

void ShardedModel::init_weights(uint64_t seed, Which which) {
  at::NoGradGuard no_grad;
  for (ShardedParameter* placed : parameters()) {
    if (placed->value.numel() == 0) continue;
    if (which != Which::kAll && placed->parameter->frozen != (which == Which::kFrozen)) continue;
    if (placed->parameter->packed_row > 0) {
      draw_and_pack(*placed, seed);
      continue;
    }
    at::Tensor target = placed->value;
    if (target.is_cpu()) {
      nn::fill_box(*placed->parameter, seed, placed->global_offset(), target);
    } else if (!draw_on_device(*placed, seed, device_)) {
      at::Tensor drawn = at::empty(target.sizes(), target.options().device(at::kCPU));
      nn::fill_box(*placed->parameter, seed, placed->global_offset(), drawn);
      target.copy_(drawn);
    }
  }
}

std::vector<models::Tensor> ShardedModel::whole_parameters() const {
  std::vector<models::Tensor> all;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      if (parameter.frozen) continue;
      all.push_back(
          {parameter.fqn, parameter.global_shape, parameter.expert ? models::Role::kExpert : models::Role::kDense});
    }
  }
  return all;
}

void ShardedModel::prepare_gathers() {
  if (options_.float8_gather == nullptr || !options_.float8_gather->precomputes()) return;
  std::vector<const ShardedParameter*> all;
  for (const ShardedParameter* placed : parameters()) {
    if (travels_as_float8(*placed->parameter)) all.push_back(placed);
  }
  options_.float8_gather->precompute(all, device_.torch_device());
}

std::vector<ShardedParameter*> ShardedModel::parameters() {
  std::vector<ShardedParameter*> all;
  for (auto& unit : units_) {
    for (ShardedParameter& placed : unit->parameters()) all.push_back(&placed);
  }
  return all;
}

std::vector<ShardedParameter*> ShardedModel::trained() {
  std::vector<ShardedParameter*> all = parameters();
  std::erase_if(all, [](const ShardedParameter* placed) { return placed->parameter->frozen; });
  return all;
}

std::vector<at::Tensor> ShardedModel::gradients() {
  std::vector<at::Tensor> all;
  for (ShardedParameter* placed : trained()) {
    if (placed->primary) all.push_back(placed->grad);
  }
  return all;
}

void ShardedModel::finish_step() {
  // From the last block down, the order in which the reductions were started.
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    const std::vector<EngineBlock>& blocks = stage->second->blocks();
    for (auto entry = blocks.rbegin(); entry != blocks.rend(); ++entry) {
      for (ShardUnit* unit : entry->units) unit->finish_tensor_sum();
    }
  }
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    const std::vector<EngineBlock>& blocks = stage->second->blocks();
    for (auto entry = blocks.rbegin(); entry != blocks.rend(); ++entry) {
      for (ShardUnit* unit : entry->units) unit->finish_gradients();
    }
  }
  release();
  sum_tied();
}

void ShardedModel::update(ShardUnit& unit) {
  size_t first = 0;
  for (const auto& one : units_) {
    if (one.get() == &unit) break;
    if (!one->frozen()) first += one->parameters().size();
  }
  update_(unit, first, unit.parameters().size());
  unit.free_gradients();
}

void ShardedModel::release() {
  for (auto& unit : units_) unit->reshard();
}

at::Tensor ShardedModel::visit(at::Tensor activation, const Stage::Visit& pass) {
  TORCH_CHECK(stages_.size() == 1 && !options_.pipeline, "a stage of a pipeline is no whole model");
  return stages_.begin()->second->visit(std::move(activation), pass);
}

std::map<int, StageRunner*> ShardedModel::stages() {
  std::map<int, StageRunner*> all;
  for (auto& [index, stage] : stages_) all[index] = stage.get();
  return all;
}

void ShardedModel::make_stages(std::vector<std::vector<EngineBlock>> stages) {
  const PipelineShare whole{.stages = {}, .indices = {0}};
  const PipelineShare& share = options_.pipeline ? *options_.pipeline : whole;
  for (size_t i = 0; i < stages.size(); ++i) {
    const int index = share.indices[i];
    StageOptions options;
    options.first = index == 0;
    options.last = index + 1 == share.count;
    options.loss = model_.loss;
    options.dim = share.dim;
    options.sequence_ranks = share.sequence_ranks;
    options.activation = at::TensorOptions().device(device_.torch_device()).dtype(options_.precision.param);
    // Where microbatches come and go, weights are gathered and gradients reduced once a step, unless memory matters
    // more.
    options.reduce_once = options_.pipeline.has_value() && options_.reshard_after_forward != "always";
    options.splits_backward = share.splits_backward;
    if (std::any_of(stages[i].begin(), stages[i].end(), [](const EngineBlock& entry) { return entry.as_graph; })) {
      options.graphs = BlockGraphs::create(device_, options_.graphs.say);
    }
    if (options_.early_step) options.completed = [this](ShardUnit& unit) { update(unit); };
    stages_[index] = std::make_unique<Stage>(std::move(stages[i]), std::move(options));
  }
}

// What a graph cannot hold: other ranks' part in a pass (their work is not on this device), and weight gradients that
// are left for later (the next pass would overwrite what they need).
bool ShardedModel::takes_graphs() const {
  if (!options_.graphs.wanted || dynamic_cast<device::DeviceGraphs*>(&device_) == nullptr) return false;
  const auto declined = [this](const char* reason) {
    if (options_.graphs.say) options_.graphs.say(absl::StrCat("compile: no block is a graph of the device: ", reason));
    return false;
  };
  for (const mesh::Axis axis : {mesh::Axis::kTensor, mesh::Axis::kContext, mesh::Axis::kExpert}) {
    if (mesh_.mesh().size(axis) > 1) return declined("blocks exchange with other ranks");
  }
  if (options_.pipeline && options_.pipeline->splits_backward) return declined("the schedule splits backward passes");
  return true;
}

// Layers: an embedding and a head with its loss are a few operations each, and a head's logits would never be freed.
// Weights that are freed between the passes have two places in turn, since two consecutive blocks are gathered at once;
// those that stay have places of their own.
void ShardedModel::choose_graphs(std::vector<std::vector<EngineBlock>>& stages) {
  std::map<std::tuple<size_t, size_t, std::vector<int64_t>>, std::shared_ptr<parallel::WeightSlot>> in_turn;
  const auto new_slot = [this](const std::vector<int64_t>& bytes) {
    return std::make_shared<parallel::WeightSlot>(bytes, device_.torch_device());
  };
  int layers = 0, exchanging = 0;
  for (std::vector<EngineBlock>& blocks : stages) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!is_layer(*blocks[i].block)) continue;
      ++layers;
      if (exchanges_scales(*blocks[i].block)) {
        ++exchanging;
        continue;
      }
      blocks[i].as_graph = true;
      for (size_t place = 0; place < blocks[i].units.size(); ++place) {
        ShardUnit& unit = *blocks[i].units[place];
        const std::vector<int64_t> bytes = unit.weight_bytes();
        if (bytes.empty() || unit.has_slot()) continue;
        if (unit.keep() != Keep::kNothing || unit.users() > 1) {
          unit.gather_into(new_slot(bytes));
          continue;
        }
        auto& slot = in_turn[{i % 2, place, bytes}];
        if (slot == nullptr) slot = new_slot(bytes);
        unit.gather_into(slot);
      }
    }
  }
  if (exchanging > 0 && options_.graphs.say) {
    options_.graphs.say(absl::StrCat("compile: ", exchanging, " of ", layers,
                                     " layers are no graphs of the device: their scales are found with other ranks"));
  }
}

// Two ranks, one sum: its bits do not depend on the order. The lower rank sends first, so that the two pair their
// calls.
void ShardedModel::sum_tied() {
  at::NoGradGuard no_grad;
  for (ShardUnit* unit : tied_units_) {
    const comm::Group& pipeline = mesh_.group(mesh::Axis::kPipeline);
    at::Tensor mine = unit->gradient_shard();
    // A copy on the device that talks: the shard changes below, and may be offloaded.
    const at::Tensor sent = mine.to(device_.torch_device(), mine.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    at::Tensor theirs = at::empty_like(sent);
    const bool send_first = pipeline.rank() < tied_peer_;
    comm::Pending sending, receiving;
    if (send_first) sending = pipeline.send(sent, tied_peer_);
    receiving = pipeline.recv(theirs, tied_peer_);
    if (!send_first) sending = pipeline.send(sent, tied_peer_);
    receiving.wait();
    mine.add_(theirs.to(mine.device()));
    sending.wait();
  }
}

void ShardedModel::forget_gradients() {
  for (auto& unit : units_) unit->forget_gradients();
}

std::vector<optim::Slot> ShardedModel::optimizer_slots() {
  std::vector<optim::Slot> slots;
  for (ShardedParameter* placed : trained()) {
    slots.push_back({.fqn = placed->parameter->fqn,
                     .value = placed->value,
                     .grad = placed->grad,
                     .shape = placed->parameter->global_shape,
                     .offset = placed->global_offset()});
  }
  return slots;
}

// Replicas hold the same pieces. Each writes a share of them, so that a save has as many writers as there are ranks:
// piece after piece goes to the replica with the fewest bytes so far, which all of them find alike.
static void spread_over_replicas(std::vector<checkpoint::Slice>& slices, const comm::Group& replicas) {
  std::vector<int64_t> bytes(static_cast<size_t>(replicas.size()));
  for (checkpoint::Slice& slice : slices) {
    if (!slice.primary) continue;
    const auto fewest = std::min_element(bytes.begin(), bytes.end());
    *fewest += static_cast<int64_t>(slice.local.nbytes());
    slice.primary = fewest - bytes.begin() == replicas.rank();
  }
}

// `primary`: of one replica; see spread_over_replicas().
static checkpoint::Slice slice_of(const std::string& prefix, const ShardedParameter& placed, const at::Tensor& local) {
  return {prefix + placed.parameter->fqn, placed.parameter->global_shape, placed.global_offset(), local, placed.leads};
}

std::vector<checkpoint::Slice> ShardedModel::buffer_slices() {
  std::vector<checkpoint::Slice> all;
  const mesh::Coordinate place = mesh_.mesh().coordinate(mesh_.rank());
  const bool first_of_stage = place.dp_replicate == 0 && place.dp_shard == 0 && place.cp == 0 && place.tp == 0;
  for (nn::Block* block : local_blocks_) {
    for (const nn::Buffer& buffer : block->buffers()) {
      all.push_back({"model." + buffer.fqn, buffer.value.sizes().vec(), std::vector<int64_t>(buffer.value.dim(), 0),
                     buffer.value, first_of_stage});
    }
  }
  return all;
}

std::vector<checkpoint::Slice> ShardedModel::slices(optim::Optimizer* optimizer) {
  std::vector<checkpoint::Slice> all;
  const std::vector<ShardedParameter*> placed = trained();
  for (const ShardedParameter* one : placed) all.push_back(slice_of("model.", *one, one->value));
  for (size_t i = 0; optimizer != nullptr && i < placed.size(); ++i) {
    for (const optim::SlotState::Named& state : optimizer->states()[i].tensors) {
      all.push_back(slice_of(absl::StrCat("optim.", state.name, "."), *placed[i], state.value));
      all.back().form = form_of(state);
    }
  }
  spread_over_replicas(all, mesh_.group(mesh::Axis::kReplicate));
  if (!has_base()) {
    for (checkpoint::Slice& buffer : buffer_slices()) all.push_back(std::move(buffer));
  }
  if (optimizer == nullptr) return all;
  all.push_back({"optim.step", {}, {}, optimizer->step_count(), mesh_.rank() == 0});
  return all;
}

bool ShardedModel::has_base() const {
  return std::any_of(model_.blocks.begin(), model_.blocks.end(), [](const auto& block) {
    return std::any_of(block->parameters().begin(), block->parameters().end(),
                       [](const nn::Parameter& parameter) { return parameter.frozen; });
  });
}

std::vector<checkpoint::Slice> ShardedModel::base_slices() {
  if (!has_base()) return {};
  std::vector<checkpoint::Slice> all = buffer_slices();
  for (const ShardedParameter* placed : parameters()) {
    if (!placed->parameter->frozen) continue;
    checkpoint::Slice& slice = all.emplace_back(slice_of("model.", *placed, placed->value));
    slice.primary = placed->primary;
    if (placed->parameter->packed_row == 0) continue;
    slice.local = at::empty(placed->shape(), at::TensorOptions(at::kFloat).device(at::kMeta));
    slice.store = [value = placed->value](const at::Tensor& numbers) {
      nn::nf4_pack(numbers.to(value.device()), value);
    };
  }
  return all;
}

}  // namespace titan::runtime
