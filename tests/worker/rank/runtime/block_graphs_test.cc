// Tests layers' passes as graphs of a device, on a CPU that records and repeats them (recorded_graphs.h): they give the
// same bits as operation by operation, for every way to run blocks, and a replay runs no host code of the layers.
#include "worker/rank/runtime/engine/block_graphs.h"

#include <gmock/gmock.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "tests/numerics/small_models/small_specs.h"
#include "tests/worker/rank/runtime/layer_passes.h"
#include "tests/worker/rank/runtime/recorded_graphs.h"
#include "tests/worker/rank/runtime/recorded_kernels.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/parallel/weight_gather.h"

namespace titan::runtime {
namespace {

using ::testing::Each;
using testing::expect_same_bits;
using testing::GraphCounts;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LayerPasses;
using testing::RankOutcome;
using testing::RecordingDevice;
using testing::ThreadRank;
using testing::ThreadWorld;
using testing::TrainingPlan;

const parallel::CheckpointOptions kNone{.mode = "none"}, kFull{.mode = "full"},
    kEverySecond{.mode = "selective", .selective_ac_option = "2"},
    kByOperation{.mode = "selective", .selective_ac_option = "op"}, kBudget{.mode = "memory_budget"};

struct Recorded {
  std::vector<RankOutcome> ranks;
  std::shared_ptr<GraphCounts> counts = std::make_shared<GraphCounts>();
  std::vector<std::string> messages;  // Messages of all ranks.
};

// Trains with graphs. From capture `fail_from` on, each rank's captures fail.
Recorded train_recorded(TrainingPlan plan, const mesh::Degrees& degrees, int size, int fail_from = -1) {
  Recorded result;
  result.ranks.resize(static_cast<size_t>(size));
  std::mutex mutex;
  plan.sharding.graphs = {.wanted = true, .say = [&](const std::string& text) {
                            const std::lock_guard lock(mutex);
                            result.messages.push_back(text);
                          }};
  ThreadWorld world{.degrees = degrees, .size = size};
  world.make_device = [&](int, const std::shared_ptr<comm::LocalHub>& hub) {
    auto device = std::make_unique<RecordingDevice>(comm::make_local_device(hub), result.counts);
    device->fail_from(fail_from);
    return device;
  };
  testing::rethrow_cause(
      testing::run_world(world, [&](ThreadRank& self) { result.ranks[self.rank] = testing::train_rank(plan, self); }));
  return result;
}

// Compares five steps of every rank with graphs and without.
Recorded expect_graphs_change_nothing(const TrainingPlan& plan, const mesh::Degrees& degrees, int size,
                                      int fail_from = -1) {
  const std::vector<RankOutcome> plain = testing::train_world(plan, degrees, size);
  Recorded recorded = train_recorded(plan, degrees, size, fail_from);
  for (int rank = 0; rank < size; ++rank) {
    expect_same_bits(plain[rank], recorded.ranks[rank]);
    EXPECT_EQ(plain[rank].evaluated, recorded.ranks[rank].evaluated);
    EXPECT_EQ(plain[rank].step_traffic, recorded.ranks[rank].step_traffic);
    EXPECT_NE(plain[rank].losses.front(), plain[rank].losses.back());
  }
  return recorded;
}

TrainingPlan five_steps(const parallel::CheckpointOptions& ac, at::ScalarType type = at::kDouble) {
  TrainingPlan plan;
  plan.steps = 5;
  plan.seq_len = 8;
  plan.sharding.ac = ac;
  plan.sharding.precision = {type, type, type};
  return plan;
}

// The first two steps run without graphs, the third captures them, and each later pass is a replay.
TEST(BlockGraphsTest, OneRankInAllTypesAndModes) {
  for (const auto& ac : {kNone, kFull, kEverySecond, kByOperation, kBudget}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(absl::StrCat(ac.mode, " ", ac.selective_ac_option, " ", c10::toString(type)));
      const TrainingPlan plan = five_steps(ac, type);
      const Recorded recorded = expect_graphs_change_nothing(plan, {}, 1);
      const auto layers = static_cast<int>(plan.spec.n_layers);
      EXPECT_EQ(recorded.counts->captures, 2 * layers);
      EXPECT_EQ(recorded.counts->replays, 3 * 2 * layers);
      EXPECT_THAT(recorded.messages, IsEmpty());
    }
  }
}

// Weights are gathered into the same memory each time, even if they are freed in between, and bf16 weights are
// converted there.
TEST(BlockGraphsTest, ShardsWithFreedWeights) {
  for (const char* policy : {"default", "always", "never"}) {
    for (const auto& ac : {kNone, kFull, kByOperation}) {
      SCOPED_TRACE(absl::StrCat(policy, " ", ac.mode));
      TrainingPlan plan = five_steps(ac);
      plan.spec.n_layers = 4;
      plan.sharding.reshard_after_forward = policy;
      EXPECT_EQ(expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2).counts->captures, 2 * 8);
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      EXPECT_EQ(expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2).counts->captures, 2 * 8);
      EXPECT_EQ(expect_graphs_change_nothing(plan, {}, 1).counts->captures, 8);
    }
  }
}

TEST(BlockGraphsTest, AccumulationReplicasAndOffload) {
  TrainingPlan plan = five_steps(kEverySecond);
  plan.microbatches = 2;
  EXPECT_EQ(expect_graphs_change_nothing(plan, {}, 1).counts->captures, 6);
  plan.global_batch = 8;
  EXPECT_EQ(expect_graphs_change_nothing(plan, {.dp_replicate = 2, .dp_shard = 2}, 4).counts->captures, 4 * 6);
  plan.sharding.cpu_offload = true;
  EXPECT_EQ(expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2).counts->captures, 2 * 6);
}

// Each of several microbatches in flight has its own graph. The first run has no graphs, since nothing may be in flight
// when the first graph is captured.
TEST(BlockGraphsTest, PipelinesWithMicrobatchesInFlight) {
  for (const char* schedule : {"1F1B", "GPipe", "Interleaved1F1B"}) {
    for (const char* policy : {"default", "always", "never"}) {
      for (const auto& ac : {kNone, kFull, kByOperation}) {
        SCOPED_TRACE(absl::StrCat(schedule, " ", policy, " ", ac.mode));
        TrainingPlan plan = five_steps(ac);
        plan.spec.n_layers = 4;
        plan.steps = 3;
        plan.schedule = schedule;
        plan.pipeline_microbatches = 4;
        plan.sharding.reshard_after_forward = policy;
        const Recorded recorded = expect_graphs_change_nothing(plan, {.pp = 2}, 2);
        EXPECT_GT(recorded.counts->captures, 8);  // More than one for each layer and pass.
        EXPECT_THAT(recorded.messages, IsEmpty());
      }
    }
  }
  TrainingPlan plan = five_steps(kEverySecond);
  plan.spec.n_layers = 4;
  plan.microbatches = 2;
  plan.global_batch = 8;
  plan.steps = 3;
  plan.sharding.reshard_after_forward = "always";
  EXPECT_GT(expect_graphs_change_nothing(plan, {.pp = 2, .dp_shard = 2}, 4).counts->captures, 16);
}

// If one product computes all experts, the host never reads the number of each one's rows.
TEST(BlockGraphsTest, ExpertsInOneCall) {
  for (const char* family : {"qwen3_moe", "deepseek_v3", "llama4", "gpt_oss"}) {
    for (const auto& ac : {kNone, kFull, kByOperation}) {
      SCOPED_TRACE(absl::StrCat(family, " ", ac.mode));
      TrainingPlan plan = five_steps(ac);
      plan.spec = testing::small_spec(family);
      plan.spec.n_layers = 3;
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      const Recorded recorded = expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2);
      EXPECT_EQ(recorded.counts->captures, 2 * 6);
      EXPECT_THAT(recorded.messages, IsEmpty());
    }
  }
}

// Graphs contain the row kernels of compile.enable, like LibTorch's operations.
TEST(BlockGraphsTest, RowsByTitansKernels) {
  const testing::RecordedKernels kernels;
  kernels::choose_on_device(&kernels, {.model = true, .loss = true});
  for (const char* family : {"llama3", "qwen3_moe", "gpt_oss"}) {
    for (const auto& ac : {kNone, kFull}) {
      SCOPED_TRACE(absl::StrCat(family, " ", ac.mode));
      TrainingPlan plan = five_steps(ac);
      plan.spec = testing::small_spec(family);
      plan.spec.n_layers = 3;
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      const int64_t before = kernels.launches();
      EXPECT_EQ(expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2).counts->captures, 2 * 6);
      EXPECT_GT(kernels.launches(), before);
    }
  }
  kernels::choose_on_device(nullptr, {});
}

// With one product per expert, passes that depend on numbers read by the host are not captured. Each layer reports this
// once.
TEST(BlockGraphsTest, PassesWithHostReadsAreNotCaptured) {
  TrainingPlan plan = five_steps(kFull);
  plan.spec = testing::small_spec("qwen3_moe");
  plan.spec.n_layers = 3;
  const Recorded recorded = expect_graphs_change_nothing(plan, {}, 1);
  EXPECT_EQ(recorded.counts->captures, 0);
  EXPECT_EQ(recorded.messages.size(), 3U);
  EXPECT_THAT(recorded.messages, Each(HasSubstr("the host reads the rows of each expert")));
}

// Packed documents end at other places in each batch, so attention plans its calls each time.
TEST(BlockGraphsTest, PackedDocumentsAreNotCaptured) {
  TrainingPlan plan = five_steps(kFull);
  plan.spec = testing::small_spec("llama3_packed");
  plan.seq_len = 16;
  plan.document_end = 5;
  const Recorded recorded = expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2);
  EXPECT_EQ(recorded.counts->captures, 0);
  EXPECT_EQ(recorded.messages.size(), 2U * static_cast<size_t>(plan.spec.n_layers));
  EXPECT_THAT(recorded.messages, Each(HasSubstr("the host reads where documents end")));
}

TEST(BlockGraphsTest, DeclinesCommunicationAndSplitBackwardPasses) {
  TrainingPlan plan = five_steps(kNone);
  plan.spec.n_layers = 4;
  plan.spec.ffn_hidden = 48;
  plan.spec.vocab_size = 48;
  plan.steps = 3;
  const auto declines = [&](const mesh::Degrees& degrees, const char* why) {
    const Recorded recorded = expect_graphs_change_nothing(plan, degrees, 2);
    EXPECT_EQ(recorded.counts->captures, 0);
    EXPECT_EQ(recorded.messages.size(), 2U);
    EXPECT_THAT(recorded.messages, Each(HasSubstr(why)));
  };
  declines({.tp = 2}, "blocks communicate with other ranks");
  declines({.cp = 2}, "blocks communicate with other ranks");
  plan.schedule = "ZBVZeroBubble";
  plan.pipeline_microbatches = 4;
  declines({.pp = 2}, "the schedule splits backward passes");
}

constexpr nn::LowPrecisionRecipe kRecipes[] = {
    nn::LowPrecisionRecipe::kFloat8Tensorwise, nn::LowPrecisionRecipe::kFloat8Rowwise,
    nn::LowPrecisionRecipe::kFloat8RowwiseGwHp, nn::LowPrecisionRecipe::kMxfp8};

TrainingPlan converted(nn::LowPrecisionRecipe recipe, const parallel::CheckpointOptions& ac,
                       const char* family = "llama3") {
  TrainingPlan plan = five_steps(ac);
  plan.spec = testing::small_spec(family);
  plan.spec.n_layers = 3;
  plan.convert = [recipe](model::Model& model) { testing::convert_layers(model, {.recipe = recipe}); };
  return plan;
}

// Graphs contain the quantization, including the scales.
TEST(BlockGraphsTest, ProductsInEightBits) {
  for (const nn::LowPrecisionRecipe recipe : kRecipes) {
    for (const auto& ac : {kNone, kFull, kByOperation}) {
      SCOPED_TRACE(absl::StrCat("recipe ", static_cast<int>(recipe), ", ", ac.mode));
      TrainingPlan plan = converted(recipe, ac);
      const Recorded one = expect_graphs_change_nothing(plan, {}, 1);
      EXPECT_EQ(one.counts->captures, 6);
      EXPECT_EQ(one.counts->replays, 3 * 6);
      EXPECT_THAT(one.messages, IsEmpty());
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      const Recorded two = expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2);
      EXPECT_EQ(two.counts->captures, 2 * 6);
      EXPECT_THAT(two.messages, IsEmpty());
      plan.convert = {};
      EXPECT_NE(two.ranks[0].losses, testing::train_world(plan, {.dp_shard = 2}, 2)[0].losses);
    }
  }
}

TEST(BlockGraphsTest, ProductsInEightBitsInAPipeline) {
  TrainingPlan plan = converted(nn::LowPrecisionRecipe::kFloat8Rowwise, kFull);
  plan.spec.n_layers = 4;
  plan.pipeline_microbatches = 4;
  const Recorded recorded = expect_graphs_change_nothing(plan, {.pp = 2}, 2);
  EXPECT_GT(recorded.counts->captures, 8);
  EXPECT_THAT(recorded.messages, IsEmpty());
}

// With row scales one product computes all experts. MX's blocks end with an expert's rows, and products with one scale
// per operand have sums in fp32, for which there is no call for all experts. In both cases the host must know the rows.
TEST(BlockGraphsTest, ExpertsInEightBits) {
  for (const nn::LowPrecisionRecipe recipe : kRecipes) {
    for (const auto& ac : {kNone, kFull}) {
      SCOPED_TRACE(absl::StrCat("recipe ", static_cast<int>(recipe), ", ", ac.mode));
      TrainingPlan plan = converted(recipe, ac, "qwen3_moe");
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      for (const int ranks : {1, 2}) {
        const Recorded recorded = expect_graphs_change_nothing(plan, {.dp_shard = ranks}, ranks);
        const bool one_call =
            recipe == nn::LowPrecisionRecipe::kFloat8Rowwise || recipe == nn::LowPrecisionRecipe::kFloat8RowwiseGwHp;
        if (!one_call) {
          EXPECT_EQ(recorded.messages.size(), 3U * static_cast<size_t>(ranks));
          EXPECT_THAT(recorded.messages, Each(HasSubstr("the host reads the rows of each expert")));
        } else {
          EXPECT_EQ(recorded.counts->captures, ranks * 6);
          EXPECT_THAT(recorded.messages, IsEmpty());
        }
      }
    }
  }
}

// Layers whose scales are found together with other ranks are not captured; other layers are.
TEST(BlockGraphsTest, LayersWithSharedScalesAreNotCaptured) {
  for (const size_t shared : {size_t{1}, size_t{3}}) {
    TrainingPlan plan = five_steps(kNone);
    plan.convert = [=](model::Model& model) {
      testing::convert_layers(model, {.recipe = nn::LowPrecisionRecipe::kFloat8Rowwise});
      const nn::AmaxOverRanks over_ranks = [](at::Tensor&) {};
      testing::convert_layers(model,
                              {.recipe = nn::LowPrecisionRecipe::kFloat8Tensorwise, .gradient_over_ranks = over_ranks},
                              /*first=*/3 - shared);
    };
    const Recorded recorded = expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2);
    EXPECT_EQ(recorded.counts->captures, 2 * 2 * (3 - static_cast<int>(shared)));
    EXPECT_EQ(recorded.messages.size(), 2U);
    EXPECT_THAT(recorded.messages, Each(HasSubstr(absl::StrCat(shared, " of 3 layers do not run as device graphs"))));
  }
}

// Gives each rank its own gather recipe, for all weights with quantized products.
void gather_eight_bits(TrainingPlan& plan, bool precomputes) {
  plan.of_rank = [=](ShardingOptions& sharding, ThreadRank& self) {
    sharding.float8_gather = std::make_shared<parallel::Float8Gather>(
        self.mesh->group(mesh::Axis::kFsdp), /*tensor=*/nullptr, sharding.precision.param, precomputes);
    sharding.as_float8 = [](const nn::Parameter& parameter) { return parameter.products != nullptr; };
  };
}

// Every step writes bytes and scales to where the graphs read them.
TEST(BlockGraphsTest, WeightsGatheredInEightBits) {
  for (const char* policy : {"default", "always", "never"}) {
    for (const auto& ac : {kNone, kFull, kByOperation}) {
      SCOPED_TRACE(absl::StrCat(policy, " ", ac.mode));
      TrainingPlan plan = converted(nn::LowPrecisionRecipe::kFloat8Tensorwise, ac);
      plan.sharding.reshard_after_forward = policy;
      plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
      gather_eight_bits(plan, /*precomputes=*/false);
      const Recorded recorded = expect_graphs_change_nothing(plan, {.dp_shard = 2}, 2);
      EXPECT_EQ(recorded.counts->captures, 2 * 6);
      EXPECT_THAT(recorded.messages, IsEmpty());
      plan.of_rank = {};
      EXPECT_LT(recorded.ranks[0].step_traffic.at("fsdp/all_gather").bytes,
                testing::train_world(plan, {.dp_shard = 2}, 2)[0].step_traffic.at("fsdp/all_gather").bytes);
    }
  }
}

// Captures of the forward or the backward pass fail from a given one on. Blocks with a failed capture continue without
// graphs.
TEST(BlockGraphsTest, FailedCapturesChangeNothing) {
  for (const auto& ac : {kNone, kFull, kByOperation}) {
    for (const int fail_from : {0, 1, 2, 3, 4, 5}) {
      SCOPED_TRACE(absl::StrCat(ac.mode, " from capture ", fail_from));
      const Recorded recorded = expect_graphs_change_nothing(five_steps(ac), {.dp_shard = 2}, 2, fail_from);
      EXPECT_EQ(recorded.counts->captures, 2 * fail_from);
      // Captures from `fail_from` on fail: forward ones, then the backward ones of blocks whose forward capture
      // succeeded.
      EXPECT_EQ(recorded.counts->failures, 2 * (fail_from < 3 ? 3 : 6 - fail_from));
      EXPECT_EQ(recorded.messages.size(), static_cast<size_t>(recorded.counts->failures));
      EXPECT_THAT(recorded.messages, Each(HasSubstr("operation by operation")));
    }
  }
}

// Two of seven steps run without graphs and one is captured. The layer is recomputed, and evaluated after every step.
TEST(BlockGraphsTest, ReplaysRunNoneOfTheLayersCode) {
  TrainingPlan plan = five_steps(kFull);
  plan.steps = 7;
  const LayerPasses passes;
  train_recorded(plan, {}, 1);
  EXPECT_EQ(passes.backward(), 3);
  EXPECT_EQ(passes.forward(), 3 * 2 + plan.steps);
}

// Runs ranks without the trainer: step(model, mesh, number) for each of `steps`, then an optimizer's step.
using Step = std::function<void(testing::RankModel&, const comm::DeviceMesh&, int)>;
void drive(const TrainingPlan& plan, const std::shared_ptr<GraphCounts>& counts, int steps, const Step& step,
           int shards = 1) {
  ThreadWorld world{.degrees = {.dp_shard = shards}, .size = shards};
  world.make_device = [&](int, const std::shared_ptr<comm::LocalHub>& hub) {
    return std::make_unique<RecordingDevice>(comm::make_local_device(hub), counts);
  };
  testing::rethrow_cause(testing::run_world(world, [&](ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    model.sharded->init_weights(7);
    auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
    for (int number = 0; number < steps; ++number) {
      step(model, *self.mesh, number);
      optimizer->step(1e-2);
    }
  }));
}

// Microbatches of another length run without graphs, before and after graphs exist.
TEST(BlockGraphsTest, OtherShapesRunWithoutGraphs) {
  const auto counts = std::make_shared<GraphCounts>();
  const std::vector<int64_t> lengths = {8, 4, 8, 8, 4, 8, 4, 4, 8, 8};
  const auto train = [&](bool graphs) {
    std::vector<at::Tensor> outcome;
    TrainingPlan plan = five_steps(kNone);
    plan.sharding.graphs.wanted = graphs;
    drive(plan, counts, static_cast<int>(lengths.size()), [&](auto& model, const auto& mesh, int number) {
      plan.seq_len = lengths[number];
      outcome.push_back(testing::forward_backward(plan, mesh, model, number));
      for (const at::Tensor& gradient : model.sharded->gradients()) outcome.push_back(gradient.clone());
    });
    return outcome;
  };
  const std::vector<at::Tensor> plain = train(false), recorded = train(true);
  ASSERT_EQ(plain.size(), recorded.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(recorded[i])) << i;
  EXPECT_EQ(counts->captures, 6);
  EXPECT_EQ(counts->replays, 6 * 5);  // For length 8 from the third step on.
}

// Shows that the test of gathered weights would notice graphs that read a scale at the wrong place: after the captured
// step the scales move, and the graphs continue with the third step's scales at the old place.
TEST(BlockGraphsTest, StaleScalesAreNoticed) {
  for (const bool precomputes : {false, true}) {
    TrainingPlan plan = converted(nn::LowPrecisionRecipe::kFloat8Tensorwise, kNone);
    gather_eight_bits(plan, precomputes);
    const auto counts = std::make_shared<GraphCounts>();
    const auto train = [&](bool graphs, bool moves) {
      plan.sharding.graphs.wanted = graphs;
      std::vector<std::vector<at::Tensor>> losses(2), old_places(2);  // By rank.
      const Step step = [&](testing::RankModel& model, const comm::DeviceMesh& mesh, int number) {
        const auto rank = static_cast<size_t>(mesh.rank());
        for (auto* placed : model.sharded->parameters()) {
          at::Tensor& scales = placed->parameter->arrived.scales;
          if (!moves || number != 3 || !scales.defined()) continue;
          old_places[rank].push_back(scales);
          scales = scales.clone();
        }
        model.sharded->prepare_gathers();
        losses[rank].push_back(testing::forward_backward(plan, mesh, model, number));
      };
      drive(plan, counts, 5, step, /*shards=*/2);
      EXPECT_EQ(old_places[0].empty(), !moves);
      return losses[0];
    };
    const auto plain = train(false, false), recorded = train(true, false), stale = train(true, true);
    EXPECT_EQ(counts->captures, 2 * 2 * 6);
    ASSERT_EQ(plain.size(), 5U);
    for (size_t step = 0; step < plain.size(); ++step) {
      EXPECT_TRUE(recorded[step].equal(plain[step])) << step;
      EXPECT_EQ(stale[step].equal(plain[step]), step < 3) << step;
    }
  }
}

// Each token counts once for its experts, also in replays and if a block is recomputed.
TEST(BlockGraphsTest, ReplaysCountTokens) {
  for (const auto& ac : {kNone, kFull}) {
    TrainingPlan plan = five_steps(ac);
    plan.spec = testing::small_spec("qwen3_moe");
    plan.spec.n_layers = 2;
    plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
    plan.sharding.graphs.wanted = true;
    const auto counts = std::make_shared<GraphCounts>();
    drive(plan, counts, 5, [&](auto& model, const auto& mesh, int number) {
      testing::forward_backward(plan, mesh, model, number);
      for (nn::Block* block : model.sharded->blocks()) {
        auto* layer = dynamic_cast<nn::HasExperts*>(block);
        if (layer == nullptr) continue;
        EXPECT_EQ(layer->mixture()->tokens_per_expert.sum().template item<int64_t>(),
                  plan.global_batch * plan.seq_len * layer->mixture()->top_k());
        layer->mixture()->tokens_per_expert.zero_();
      }
    });
    EXPECT_EQ(counts->captures, 4);
  }
}

// Replays raise each head's largest logit in its buffer. Recomputation for the backward pass does not.
TEST(BlockGraphsTest, ReplaysRecordLogits) {
  for (const auto& ac : {kNone, kFull, kByOperation}) {
    SCOPED_TRACE(absl::StrCat(ac.mode, " ", ac.selective_ac_option));
    TrainingPlan plan = five_steps(ac);
    plan.qk_clip = 0.01;
    plan.microbatches = 2;
    const RankOutcome plain = testing::train_world(plan, {}, 1)[0];
    const Recorded recorded = expect_graphs_change_nothing(plan, {}, 1);
    EXPECT_GT(recorded.counts->replays, 0);
    for (size_t step = 0; step < plain.logits.size(); ++step) {
      EXPECT_EQ(recorded.ranks[0].logits[step].largest, plain.logits[step].largest) << step;
      EXPECT_GE(plain.logits[step].clipped, 1) << step;
      EXPECT_EQ(recorded.ranks[0].logits[step].clipped, plain.logits[step].clipped) << step;
    }
  }
}

// Tests the contract of the recording device, on which the tests above depend.
class RecordingDeviceTest : public ::testing::Test {
 protected:
  std::unique_ptr<device::DeviceGraph> capture(const std::function<void()>& work,
                                               device::GraphMemory memory = device::GraphMemory::kOwn) {
    return device_.capture(work, memory);
  }
  RecordingDevice device_{comm::make_cpu_device(), std::make_shared<GraphCounts>()};
};

TEST_F(RecordingDeviceTest, DoesNothingUntilItReplays) {
  at::Tensor input = at::ones({3}), sum = at::zeros({3}), twice;
  const auto graph = capture([&] {
    twice = input * 2;
    sum.add_(twice);
  });
  EXPECT_TRUE(sum.equal(at::zeros({3})));
  EXPECT_TRUE(twice.isnan().all().item<bool>());
  graph->replay();
  input.fill_(5);
  graph->replay();
  EXPECT_TRUE(twice.equal(at::full({3}, 10.0F)));
  EXPECT_TRUE(sum.equal(at::full({3}, 12.0F)));
}

TEST_F(RecordingDeviceTest, NoticesMemoryThatIsGoneOrMoved) {
  at::Tensor input = at::ones({3}), output = at::empty({3});
  const auto graph = capture([&] { output.copy_(input.exp()); });
  graph->replay();
  auto& storage = *input.storage().unsafeGetStorageImpl();
  const at::Tensor elsewhere = at::ones({3});
  const at::DataPtr was = storage.set_data_ptr(at::DataPtr(elsewhere.mutable_data_ptr(), at::kCPU));
  EXPECT_THROW(graph->replay(), std::runtime_error);
  input = at::Tensor();
  EXPECT_THROW(graph->replay(), std::runtime_error);
}

TEST_F(RecordingDeviceTest, SharedMemoryLastsUntilTheNextReplay) {
  const at::Tensor input = at::ones({3});
  at::Tensor one, other;
  const auto first = capture([&] { one = input + 1; }, device::GraphMemory::kShared);
  const auto second = capture([&] { other = input + 2; }, device::GraphMemory::kShared);
  first->replay();
  EXPECT_TRUE(one.equal(at::full({3}, 2.0F)));
  second->replay();
  EXPECT_TRUE(one.isnan().all().item<bool>());
  EXPECT_TRUE(other.equal(at::full({3}, 3.0F)));
}

TEST_F(RecordingDeviceTest, RefusesOperationsThatTheHostWaitsFor) {
  const at::Tensor input = at::ones({1});
  EXPECT_THROW(capture([&] { input.item<float>(); }), std::exception);
  EXPECT_EQ(input.item<float>(), 1);
}

// Two units whose weights are gathered at the same time cannot share a place.
TEST(WeightSlotTest, ServesOneUnitAtATime) {
  parallel::WeightSlot slot({16, 0}, at::kCPU);
  const at::Tensor one = at::empty({4}), other = at::empty({4});
  auto& first = *one.storage().unsafeGetStorageImpl();
  auto& second = *other.storage().unsafeGetStorageImpl();
  slot.lend(0, first);
  const void* address = one.const_data_ptr();
  EXPECT_THROW(slot.lend(0, second), c10::Error);
  slot.take_back(0, first);
  EXPECT_EQ(first.nbytes(), 0U);
  slot.lend(0, second);
  EXPECT_EQ(other.const_data_ptr(), address);
}

}  // namespace
}  // namespace titan::runtime
