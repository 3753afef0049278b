// Tests adapters on a frozen model: the same training on every mesh, and no cost for frozen parameters.
#include "worker/rank/model/adapters.h"

#include "tests/numerics/small_models/small_specs.h"
#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/nf4.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {
namespace {

using models::AdapterSpec;
using models::BaseForm;
using testing::RankOutcome;
using testing::train_world;
using testing::TrainingPlan;

const AdapterSpec kAdapters{.rank = 4, .alpha = 8, .targets = {"attention", "feed_forward", "shared_experts"}};

// Adds the adapters with values: B starts at zero, so A would have no gradient in the first step.
std::function<void(model::Model&)> adapt(const AdapterSpec& adapters) {
  return [adapters](model::Model& model) {
    const absl::Status added = model::add_adapters(model, adapters);
    if (!added.ok()) throw std::runtime_error(std::string(added.message()));
    for (const auto& block : model.blocks) {
      for (nn::Parameter& parameter : block->parameters()) {
        if (parameter.adapts && parameter.init.kind == nn::Init::Kind::kZeros)
          parameter.init = {.kind = nn::Init::Kind::kNormal, .std = 0.1};
      }
    }
  };
}

// Returns a spec whose blocks of 64 weights divide by two tensor ranks.
models::ModelSpec llama_for_blocks() {
  models::ModelSpec spec = testing::small_spec("llama3");
  spec.dim = spec.ffn_hidden = 128;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 32;
  spec.n_layers = 4;
  return spec;
}

TrainingPlan plan_of(const models::ModelSpec& spec, const AdapterSpec& adapters = kAdapters) {
  TrainingPlan plan;
  plan.spec = spec;
  plan.sharding.frozen = at::kDouble;
  plan.convert = adapt(adapters);
  return plan;
}

struct AdapterCase {
  const char* name;
  const char* family;
  mesh::Degrees degrees;
  int world;
  BaseForm base = BaseForm::kCompute;
  std::function<void(TrainingPlan&)> change;
  std::vector<std::string> targets = kAdapters.targets;

  friend void PrintTo(const AdapterCase& value, std::ostream* out) { *out << value.name; }
};

class AdapterMeshTest : public ::testing::TestWithParam<AdapterCase> {};

// Loss, norm, the adapters' gradients and the weights after five steps equal one rank's, and the optimizer has only
// adapters.
TEST_P(AdapterMeshTest, TrainsAsOneRank) {
  const AdapterCase& one = GetParam();
  AdapterSpec adapters = kAdapters;
  adapters.base = one.base;
  adapters.targets = one.targets;
  const bool packed = one.base == BaseForm::kNf4;
  TrainingPlan plan = plan_of(packed ? llama_for_blocks() : testing::small_spec(one.family), adapters);
  if (!packed) plan.spec.n_layers = 4;
  plan.steps = 5;
  TrainingPlan alone = plan;
  if (one.change) one.change(plan);
  alone.global_batch = plan.global_batch;
  const RankOutcome reference = train_world(alone, {}, 1)[0];
  EXPECT_EQ(reference.pieces.size(), 2 * models::adapter_tensors(plan.spec, adapters).size());
  for (const auto& [key, piece] : reference.pieces) EXPECT_GT(piece.value.abs().max().item<double>(), 0) << key;
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  testing::expect_same_training(reference, train_world(plan, one.degrees, one.world), testing::kExact);
}

// Muon trains the adapters' matrices, with momentum as its only state: the same on every mesh, and not as AdamW does.
TEST(AdapterOptimizer, MuonTrainsThemAsOnOneRank) {
  TrainingPlan plan = plan_of(testing::small_spec("llama3"));
  plan.spec.n_layers = 4;
  plan.steps = 5;
  const RankOutcome by_adamw = train_world(plan, {}, 1)[0];
  plan.make_optimizer = [](ShardedModel& model, testing::ThreadRank& self) {
    config::JobConfig config;
    config.optimizer.name = "Muon";
    config.optimizer.lr = 1;
    const config::UpdateRules rules = update_rules_of(config.optimizer, model).value();
    auto optimizer = build_optimizer(config, rules, model, *self.mesh, *self.device);
    EXPECT_EQ(optimizer->states().size(), model.trained().size());
    for (const optim::SlotState& state : optimizer->states()) {
      EXPECT_EQ(state.tensors.size(), 1U);
      EXPECT_EQ(state.tensors[0].name, "momentum_buffer");
    }
    return optimizer;
  };
  const RankOutcome reference = train_world(plan, {}, 1)[0];
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  EXPECT_NE(reference.losses.back(), by_adamw.losses.back());
  EXPECT_EQ(reference.pieces.size(), 2 * models::adapter_tensors(plan.spec, kAdapters).size());
  for (const auto& [degrees, world] :
       std::vector<std::pair<mesh::Degrees, int>>{{{.dp_shard = 2}, 2},
                                                  {{.dp_shard = 4}, 4},
                                                  {{.dp_replicate = 2, .dp_shard = 1}, 2},
                                                  {{.tp = 2}, 2},
                                                  {{.cp = 2, .tp = 2}, 4},
                                                  {{.pp = 2, .dp_shard = 2}, 4}}) {
    SCOPED_TRACE(::testing::Message() << "pp " << degrees.pp << " rep " << degrees.dp_replicate << " shard "
                                      << degrees.dp_shard << " cp " << degrees.cp << " tp " << degrees.tp);
    testing::expect_same_training(reference, train_world(plan, degrees, world), testing::kExact);
  }
}

std::function<void(TrainingPlan&)> scheduled(const char* name, int stages = 0) {
  return [=](TrainingPlan& plan) {
    plan.schedule = name;
    plan.stages_per_rank = stages;
    plan.pipeline_microbatches = 4;
    plan.global_batch = 8;
  };
}

std::function<void(TrainingPlan&)> recomputed(const parallel::CheckpointOptions& ac, const char* reshard = "default") {
  return [=](TrainingPlan& plan) {
    plan.sharding.ac = ac;
    plan.sharding.reshard_after_forward = reshard;
  };
}

const std::vector<std::string> kWithExperts = {"attention", "moe.experts"};
const parallel::CheckpointOptions kByOperation{.mode = "selective", .selective_ac_option = "op"};

INSTANTIATE_TEST_SUITE_P(
    Meshes, AdapterMeshTest,
    ::testing::Values(
        AdapterCase{"fsdp2", "llama3", {.dp_shard = 2}, 2},
        AdapterCase{"fsdp4_full", "llama3", {.dp_shard = 4}, 4, {}, recomputed({.mode = "full"}, "always")},
        AdapterCase{"rep2_fsdp2", "qwen3", {.dp_replicate = 2, .dp_shard = 2}, 4, {}, recomputed(kByOperation)},
        AdapterCase{
            "offloaded", "llama3", {.dp_shard = 2}, 2, {}, [](TrainingPlan& p) { p.sharding.cpu_offload = true; }},
        AdapterCase{"accumulated", "llama3", {.dp_shard = 2}, 2, {}, [](TrainingPlan& plan) { plan.microbatches = 2; }},
        AdapterCase{"tp2", "llama3", {.tp = 2}, 2, {}, recomputed(kByOperation)},
        AdapterCase{"fsdp2_tp2", "qwen3", {.dp_shard = 2, .tp = 2}, 4, {}, recomputed({.mode = "memory_budget"})},
        AdapterCase{"tp4_whole_sequence",
                    "llama3",
                    {.tp = 4},
                    4,
                    {},
                    [](TrainingPlan& plan) { plan.parallel.sequence_parallel = false; }},
        AdapterCase{"fsdp2_tp2_async",
                    "llama3",
                    {.dp_shard = 2, .tp = 2},
                    4,
                    {},
                    [](TrainingPlan& plan) {
                      plan.parallel.async_tensor_parallel = true;
                      plan.sharding.ac = kByOperation;
                    }},
        AdapterCase{"cp2_tp2", "llama3_packed", {.cp = 2, .tp = 2}, 4},
        AdapterCase{"pp2_fsdp2", "llama3", {.pp = 2, .dp_shard = 2}, 4, {}, scheduled("1F1B")},
        AdapterCase{"pp2_zbv_tied", "qwen3", {.pp = 2}, 2, {}, scheduled("ZBVZeroBubble")},
        AdapterCase{"pp2_interleaved_tp2", "llama3", {.pp = 2, .tp = 2}, 4, {}, scheduled("InterleavedZeroBubble", 2)},
        // The model's first stage has nothing to train, but its last one has.
        AdapterCase{"pp2_late_1f1b", "llama3", {.pp = 2, .dp_shard = 2}, 4, {}, scheduled("1F1B"), {"layers.3"}},
        AdapterCase{
            "pp2_late_zbv", "llama3", {.pp = 2}, 2, {}, scheduled("InterleavedZeroBubble", 2), {"layers.3.*.wo"}},
        // The last stage has nothing to train and only passes gradients on.
        AdapterCase{
            "pp2_early", "qwen3", {.pp = 2, .tp = 2}, 4, {}, scheduled("ZBVZeroBubble"), {"layers.0.attention"}},
        AdapterCase{"fsdp2_late", "llama3", {.dp_shard = 2}, 2, {}, recomputed({.mode = "full"}), {"layers.2", "w2"}},
        AdapterCase{"latent_tp2", "deepseek_v3", {.tp = 2}, 2},
        AdapterCase{"ep2_fsdp4", "deepseek_v3", {.dp_shard = 4, .ep = 2}, 4},
        AdapterCase{"ep4_tp2_apart", "deepseek_v3", {.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1}, 4},
        AdapterCase{
            "ep2_etp2", "llama4", {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 4, {}, recomputed({.mode = "full"})},
        // Each expert has a separate adapter.
        AdapterCase{"experts_fsdp2", "qwen3_moe", {.dp_shard = 2}, 2, {}, recomputed(kByOperation), kWithExperts},
        AdapterCase{"experts_tp2", "deepseek_v3", {.tp = 2}, 2, {}, {}, kWithExperts},
        AdapterCase{"experts_ep2_fsdp4", "deepseek_v3", {.dp_shard = 4, .ep = 2}, 4, {}, {}, kWithExperts},
        AdapterCase{"experts_ep4_tp2_apart",
                    "deepseek_v3",
                    {.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1},
                    4,
                    {},
                    {},
                    kWithExperts},
        AdapterCase{"experts_ep2_etp2",
                    "llama4",
                    {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2},
                    4,
                    {},
                    recomputed({.mode = "full"}),
                    kWithExperts},
        AdapterCase{"experts_ep2_gathered",
                    "qwen3_moe",
                    {.dp_shard = 2, .ep = 2},
                    2,
                    {},
                    [](TrainingPlan& plan) { plan.parallel.expert_dispatcher = "allgather"; },
                    kWithExperts},
        AdapterCase{"experts_ep2_pp2",
                    "deepseek_v3",
                    {.pp = 2, .dp_shard = 2, .ep = 2},
                    4,
                    {},
                    scheduled("ZBVZeroBubble"),
                    {"experts.w2"}},
        AdapterCase{"ep2_pp2", "gpt_oss", {.pp = 2, .dp_shard = 2, .ep = 2}, 4, {}, scheduled("1F1B")},
        AdapterCase{"packed_fsdp2", "", {.dp_shard = 2}, 2, BaseForm::kNf4},
        AdapterCase{
            "packed_fsdp3", "", {.dp_shard = 3}, 3, BaseForm::kNf4, [](TrainingPlan& plan) { plan.global_batch = 6; }},
        AdapterCase{"packed_offloaded",
                    "",
                    {.dp_replicate = 2, .dp_shard = 2},
                    4,
                    BaseForm::kNf4,
                    [](TrainingPlan& plan) { plan.sharding.cpu_offload = true; }},
        AdapterCase{"packed_fsdp2_tp2", "", {.dp_shard = 2, .tp = 2}, 4, BaseForm::kNf4, recomputed(kByOperation)},
        AdapterCase{"packed_pp2_cp2", "", {.pp = 2, .cp = 2}, 4, BaseForm::kNf4, scheduled("ZBVZeroBubble")}),
    [](const auto& info) { return std::string(info.param.name); });

// Sizes of a model's adapters, of its frozen weights that stay numbers, and of packed ones.
struct Sizes {
  int64_t adapters = 0, numbers = 0, packed = 0;  // Bytes of gathered units, padded.
};

Sizes gathered_sizes(ShardedModel& model) {
  Sizes sizes;
  for (const auto& unit : model.units()) {
    const nn::Parameter& first = *unit->parameters().front().parameter;
    (first.packed_row > 0 ? sizes.packed : first.frozen ? sizes.numbers : sizes.adapters) += unit->gather_bytes();
  }
  return sizes;
}

struct Spent {
  comm::LedgerCounts traffic;
  Sizes gathered;
  int64_t shard_bytes = 0, gradient_bytes = 0, slots = 0, product_flops = 0;
};

// Runs one step of rank 0 of two.
Spent spend(const TrainingPlan& plan) {
  std::vector<Spent> all(2);
  testing::run_ranks({.dp_shard = 2}, 2, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    model.sharded->init_weights(7);
    Spent& spent = all[self.rank];
    const comm::LedgerCounts before = self.ledger.counts();
    const testing::FlopCounter flops;
    testing::forward_backward(plan, *self.mesh, model, 0);
    spent.product_flops = flops.products();
    spent.traffic = comm::subtract(self.ledger.counts(), before);
    spent.gathered = gathered_sizes(*model.sharded);
    for (const auto* placed : model.sharded->parameters()) {
      spent.shard_bytes += static_cast<int64_t>(placed->value.nbytes());
      if (placed->grad.defined()) spent.gradient_bytes += static_cast<int64_t>(placed->grad.nbytes());
    }
    spent.slots = static_cast<int64_t>(model.sharded->optimizer_slots().size());
  });
  return all[0];
}

// In a step on two FSDP ranks, frozen parameters are gathered but never reduced, have no gradient shards and no
// optimizer slots, and each of their matrices needs one product less.
TEST(AdapterCost, FrozenParametersHaveNoTrainingCost) {
  TrainingPlan plan = plan_of(llama_for_blocks());
  const Spent adapters = spend(plan);
  plan.convert = nullptr;
  const Spent whole = spend(plan);

  const std::vector<models::ParameterSpec> tensors = models::adapter_tensors(plan.spec, kAdapters);
  int64_t elements = 0;
  for (const models::ParameterSpec& tensor : tensors) elements += tensor.numel();
  EXPECT_EQ(adapters.slots, static_cast<int64_t>(tensors.size()));
  EXPECT_EQ(adapters.gradient_bytes, elements / 2 * 8);
  EXPECT_EQ(adapters.traffic.at("fsdp/reduce_scatter").bytes, elements * 8);
  EXPECT_EQ(adapters.traffic.at("fsdp/reduce_scatter").calls, plan.spec.n_layers) << "the adapters' units alone";
  EXPECT_EQ(whole.traffic.at("fsdp/reduce_scatter").bytes, models::parameter_count(plan.spec) * 8);

  // Training needs three products per matrix, two if it is frozen, and one for the first layer's frozen projections of
  // the embedding, which need no input gradient. A matrix of an adapter needs three, A of those projections two.
  int64_t matrices = plan.spec.dim * plan.spec.vocab_size, without_input = 0;  // Numbers of weights.
  for (const models::ParameterSpec& tensor : models::parameters(plan.spec)) {
    if (models::takes_adapter(tensor)) matrices += tensor.numel();
  }
  for (const char* name : {"wq", "wk", "wv"}) {
    const auto add = [&](const std::string& end) {
      for (const auto& all : {models::parameters(plan.spec), tensors}) {
        for (const models::ParameterSpec& tensor : all) {
          if (tensor.fqn == std::string("layers.0.attention.") + name + end) without_input += tensor.numel();
        }
      }
    };
    add(".weight");
    add(".lora_A.weight");
  }
  const int64_t tokens = plan.global_batch / 2 * plan.seq_len;
  EXPECT_EQ(whole.product_flops - adapters.product_flops, 2 * tokens * (matrices + without_input - 3 * elements));
}

// 64 weights of 4 bits take 36 bytes, in memory and in collectives.
TEST(AdapterCost, PackedWeightsAreGatheredPacked) {
  AdapterSpec adapters = kAdapters;
  const TrainingPlan wide = plan_of(llama_for_blocks(), adapters);
  adapters.base = BaseForm::kNf4;
  const TrainingPlan packed = plan_of(llama_for_blocks(), adapters);
  const Spent one = spend(wide), other = spend(packed);
  int64_t matrices = 0;
  for (const models::ParameterSpec& tensor : models::parameters(wide.spec)) {
    if (models::takes_adapter(tensor)) matrices += tensor.numel();
  }
  EXPECT_EQ(other.gathered.packed, matrices / 64 * 36);
  EXPECT_EQ(one.gathered.numbers - other.gathered.numbers, matrices * 8);
  EXPECT_EQ(one.shard_bytes - other.shard_bytes, (matrices * 8 - matrices / 64 * 36) / 2);
  EXPECT_EQ(one.traffic.at("fsdp/reduce_scatter"), other.traffic.at("fsdp/reduce_scatter"));
  EXPECT_LT(other.traffic.at("fsdp/all_gather").bytes, one.traffic.at("fsdp/all_gather").bytes);
}

// Adapters start at zero, so they do not change the model's loss.
TEST(AdapterCost, TrainingStartsAtTheBaseModel) {
  TrainingPlan plan = plan_of(testing::small_spec("llama3"));
  plan.convert = [](model::Model& model) { ASSERT_TRUE(model::add_adapters(model, kAdapters).ok()); };
  plan.steps = 1;
  const double adapted = train_world(plan, {}, 1)[0].losses[0];
  plan.convert = nullptr;
  EXPECT_EQ(adapted, train_world(plan, {}, 1)[0].losses[0]);
}

// An expert's adapter adds only to that expert's rows. The rows of each expert are compared with plain products.
TEST(AdapterExperts, EachExpertHasASeparateAdapter) {
  models::ModelSpec spec = testing::small_spec("deepseek_v3");
  const AdapterSpec adapters{.rank = 3, .alpha = 6, .targets = {"experts.w2"}};
  std::vector<models::ParameterSpec> tensors = models::adapter_tensors(spec, adapters);
  model::Model model = model::build(spec, {.seq_len = 16}).value();
  ASSERT_TRUE(model::add_adapters(model, adapters).ok());
  at::manual_seed(3);
  int64_t seen = 0;
  for (const auto& block : model.blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      if (!parameter.adapter) continue;
      const nn::Adapter& adapter = *parameter.adapter;
      EXPECT_EQ(adapter.a->fqn, tensors.at(2 * seen).fqn);
      EXPECT_EQ(adapter.a->global_shape, tensors.at(2 * seen).shape);
      EXPECT_EQ(adapter.b->global_shape, tensors.at(2 * seen + 1).shape);
      EXPECT_TRUE(adapter.a->expert && adapter.b->expert && parameter.frozen);
      ++seen;
      const std::vector<int64_t> shape = parameter.shape;
      for (nn::Parameter* one :
           {&parameter, const_cast<nn::Parameter*>(adapter.a), const_cast<nn::Parameter*>(adapter.b)})
        one->weight = at::randn(one->shape, at::kDouble);
      std::vector<int64_t> rows(shape[0]);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i % 3) * 2;  // Some experts have no rows.
      const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      const at::Tensor x = at::randn({all, shape[2]}, at::kDouble);
      const at::Tensor y = nn::grouped_product(x, parameter, nullptr, 1, nn::RowGroups{.rows = rows});
      int64_t first = 0;
      for (int64_t expert = 0; expert < shape[0]; ++expert) {
        const at::Tensor both = at::mm(adapter.b->weight[expert], adapter.a->weight[expert]);
        const at::Tensor expected = at::mm(x.narrow(0, first, rows[expert]), (parameter.weight[expert] + 2 * both).t());
        EXPECT_TRUE(y.narrow(0, first, rows[expert]).allclose(expected, 1e-12, 1e-12))
            << parameter.fqn << " of expert " << expert;
        first += rows[expert];
      }
    }
  }
  EXPECT_EQ(2 * seen, static_cast<int64_t>(tensors.size()));
}

TEST(AdapterTargets, UnusableTargetsAreAnError) {
  model::Model model = model::build(testing::small_spec("llama3"), {}).value();
  const absl::Status none = model::add_adapters(model, {.targets = {"atention"}});
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(none.message().find("layers.0.attention.wq"), std::string::npos) << none;
  const absl::Status narrow = model::add_adapters(model, {.targets = {"wq"}, .base = BaseForm::kNf4});
  EXPECT_EQ(narrow.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(narrow.message().find("32 inputs of layers.0.attention.wq.weight"), std::string::npos) << narrow;
}

}  // namespace
}  // namespace titan::runtime
