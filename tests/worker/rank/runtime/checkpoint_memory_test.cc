#include <map>

#include "common/plan/models/registry.h"
#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/model/decoder/decoder.h"

namespace titan::runtime {
namespace {

testing::TrainingPlan tall_plan() {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 4;
  plan.spec.dim = 64;
  plan.spec.head_dim = plan.spec.v_head_dim = 16;
  plan.spec.ffn_hidden = 96;
  plan.seq_len = 64;
  plan.global_batch = 2;
  plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
  return plan;
}

// Returns the bytes that the stage holds between a microbatch's forward and backward pass.
int64_t held_bytes(testing::TrainingPlan plan, const parallel::CheckpointOptions& ac) {
  plan.sharding.ac = ac;
  int64_t held = 0;
  testing::run_ranks({}, 1, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::AllocationMeter meter;
    const testing::AllocationMeter::Scope scope(meter);
    {
      testing::RankModel model = testing::build_rank(plan, self);
      model.sharded->init_weights(1);
      const nn::MicrobatchContext context = testing::rows_of_step(plan, 0, 0, plan.global_batch);
      StageRunner& stage = *model.sharded->stages().at(0);
      for (int repeat = 0; repeat < 2; ++repeat) {  // The first microbatch plans a memory budget.
        const int64_t before = meter.begin();
        const at::Tensor loss = stage.forward(0, context, {});
        held = meter.begin() - before - static_cast<int64_t>(loss.nbytes());
        stage.backward(0, at::ones_like(loss), /*last=*/true);
        model.sharded->finish_step();
        model.sharded->reset_gradients();
      }
    }
  });
  return held;
}

// Bytes that one layer saves in addition to its input: by its whole graph, and with recomputation.
struct LayerBytes {
  explicit LayerBytes(const testing::TrainingPlan& plan) {
    const models::ModelSpec& spec = plan.spec;
    const int64_t n = plan.global_batch * plan.seq_len, kv = spec.n_kv_heads * spec.head_dim;
    const int64_t row = 4 * n;
    const int64_t attention = row * (spec.dim + spec.n_heads);  // Output and denominators.
    // Each norm saves one factor per token, the values before its weight, and its result, which the next products read;
    // the second norm also its input. Attention saves its rotated queries and keys, and its values. The feed-forward
    // saves its two wide results, the gate's activation, and their product.
    graph = row * (2 * (1 + 2 * spec.dim) + spec.dim + (spec.dim + 2 * kv) + 4 * spec.ffn_hidden) + attention;
    by_operation = row * (spec.dim + kv + spec.ffn_hidden + spec.dim) + attention;  // wq, wv, w1, w2.
    all = row * (spec.dim + 2 * kv + spec.dim + 2 * spec.ffn_hidden + spec.dim) + attention;
  }
  int64_t graph, by_operation, all;
};

// Every mode saves exactly the predicted bytes of its layers.
TEST(CheckpointMemoryTest, EveryModeSavesThePredictedBytes) {
  const testing::TrainingPlan plan = tall_plan();
  const LayerBytes layer(plan);
  const int64_t layers = plan.spec.n_layers, every_second = layers / 2;
  const int64_t none = held_bytes(plan, {.mode = "none"});
  const int64_t full = held_bytes(plan, {.mode = "full"});
  const auto saved = [&](const parallel::CheckpointOptions& ac) { return none - held_bytes(plan, ac); };
  constexpr int64_t kScalars = 256;  // Small tensors, such as placeholders for shapes.
  EXPECT_NEAR(none - full, layers * layer.graph, kScalars);
  EXPECT_NEAR(saved({.mode = "selective", .selective_ac_option = "2"}), every_second * layer.graph, kScalars);
  EXPECT_NEAR(saved({.mode = "selective", .selective_ac_option = "op"}), layers * (layer.graph - layer.by_operation),
              kScalars);
  EXPECT_NEAR(saved({.mode = "memory_budget", .memory_budget = 0}), layers * layer.graph, kScalars);
  EXPECT_NEAR(saved({.mode = "memory_budget", .memory_budget = 1}), layers * (layer.graph - layer.all), kScalars);
  for (const double budget : {0.25, 0.5, 0.75}) {
    std::map<std::string, int64_t> chosen;
    const int64_t bytes = saved(
        {.mode = "memory_budget",
         .memory_budget = budget,
         .planned = [&](const std::string& block, const auto&, const auto& choice) { chosen[block] = choice.bytes; }});
    ASSERT_EQ(chosen.size(), static_cast<size_t>(layers));
    for (const auto& [block, saved_bytes] : chosen) {
      EXPECT_LE(static_cast<double>(saved_bytes), budget * static_cast<double>(layer.all)) << block;
      EXPECT_GT(static_cast<double>(saved_bytes), (budget - 0.25) * static_cast<double>(layer.all)) << block;
    }
    EXPECT_NEAR(bytes, layers * (layer.graph - chosen.begin()->second), kScalars) << budget;
  }
}

// Selective recomputation changes no bit in pipelines, even if they split the backward pass.
TEST(CheckpointScheduleTest, SavedActivationsWorkWithDeferredGradients) {
  for (const char* schedule : {"1F1B", "InterleavedZeroBubble", "DualPipeV"}) {
    testing::TrainingPlan plan;
    plan.spec.n_layers = 4;
    plan.steps = 2;
    plan.schedule = schedule;
    plan.pipeline_microbatches = 4;
    plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
    const auto plain = testing::train_world(plan, {.pp = 2}, 2);
    for (const parallel::CheckpointOptions& ac :
         {parallel::CheckpointOptions{.mode = "full"},
          parallel::CheckpointOptions{.mode = "selective", .selective_ac_option = "op"},
          parallel::CheckpointOptions{.mode = "memory_budget"}}) {
      plan.sharding.ac = ac;
      const auto outcome = testing::train_world(plan, {.pp = 2}, 2);
      for (int rank = 0; rank < 2; ++rank) testing::expect_same_bits(plain[rank], outcome[rank]);
    }
  }
}

// Each token counts once for its experts, however often a block runs.
TEST(CheckpointScheduleTest, ExpertsAreCountedOnce) {
  const models::ModelSpec spec = models::find("deepseek_v3", "debugmodel").value();
  const int64_t rows = 2, tokens = 8;
  for (const parallel::CheckpointOptions& ac :
       {parallel::CheckpointOptions{.mode = "none"}, parallel::CheckpointOptions{.mode = "full"},
        parallel::CheckpointOptions{.mode = "selective", .selective_ac_option = "op"}}) {
    const model::Model model = model::build(spec, {.seq_len = tokens}).value();
    auto& layer = dynamic_cast<model::DecoderLayer&>(*model.blocks[2]);
    ASSERT_TRUE(layer.moe);
    for (nn::Parameter& parameter : layer.parameters())
      parameter.weight = (at::randn(parameter.shape) / 16).set_requires_grad(true);
    layer.init_buffers(at::kCPU, at::kFloat);
    const auto checkpoint = parallel::checkpoint_plan(ac, {&layer}).value()[0];
    Stage stage({{.block = &layer, .checkpoint = checkpoint}}, {.first = false, .last = false});
    nn::MicrobatchContext context;
    context.tokens = at::zeros({rows, tokens}, at::kLong);
    const at::Tensor output = stage.forward(0, context, at::randn({rows, tokens, spec.dim}));
    stage.backward(0, at::ones_like(output), /*last=*/true);
    EXPECT_EQ(layer.moe->tokens_per_expert.sum().item<int64_t>(), rows * tokens * spec.moe->top_k) << ac.mode;
  }
}

}  // namespace
}  // namespace titan::runtime
