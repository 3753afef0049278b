// Tests graphs of a CUDA device, and compares training with layers' passes as graphs with training operation by
// operation.

#include <ATen/ops/from_blob.h>

#include "tests/worker/rank/runtime/gpu_world.h"
#include "tests/worker/rank/runtime/layer_passes.h"
#include "worker/rank/device/device_graphs.h"

namespace titan::runtime {
namespace {

using testing::DeviceOutcome;
using testing::GpuTest;
using testing::LayerPasses;
using testing::plan_of;
using testing::rehearses;
using testing::tested_device;
using testing::train_on;
using testing::TrainingPlan;

class GpuGraphsTest : public GpuTest {
 protected:
  device::DeviceGraphs& graphs() { return dynamic_cast<device::DeviceGraphs&>(*device_); }
};

// Nothing runs during a capture. Each replay runs everything, on the current content of its inputs.
TEST_F(GpuGraphsTest, ReplaysWhatWasCaptured) {
  TITAN_SKIP_IN_REHEARSAL();
  constexpr int64_t kSide = 512;
  const at::Tensor input = at::ones({kSide, kSide}, on_device());
  at::Tensor sum = at::zeros({kSide, kSide}, on_device()), product;
  at::mm(input, input);  // Creates the library's handle.
  const auto graph = graphs().capture(
      [&] {
        product = at::mm(input, input);
        sum.add_(product);
      },
      device::GraphMemory::kOwn);
  EXPECT_EQ(sum.max().item<float>(), 0);
  for (int round = 1; round <= 3; ++round) {
    input.fill_(round);
    graph->replay();
    EXPECT_EQ(product.min().item<float>(), static_cast<float>(kSide * round * round));
  }
  EXPECT_EQ(sum.max().item<float>(), static_cast<float>(kSide * (1 + 4 + 9)));
}

// A graph's result in shared memory can be read until the next replay, even after its tensor is freed.
TEST_F(GpuGraphsTest, SharedMemoryIsReused) {
  TITAN_SKIP_IN_REHEARSAL();
  constexpr int64_t kNumel = int64_t{64} << 20;
  const at::Tensor input = at::ones({kNumel}, on_device());
  std::vector<std::unique_ptr<device::DeviceGraph>> all;
  std::vector<at::Tensor> results;
  const int64_t before = device_->memory().peak_reserved;
  for (int i = 0; i < 8; ++i) {
    at::Tensor result;
    all.push_back(graphs().capture([&] { result = input + i; }, device::GraphMemory::kShared));
    results.push_back(at::from_blob(result.mutable_data_ptr(), result.sizes(), result.strides(), result.options()));
  }
  EXPECT_LE(device_->memory().peak_reserved - before, 2 * 4 * kNumel);
  for (int i = 0; i < 8; ++i) {
    all[i]->replay();
    EXPECT_EQ(results[i].min().item<float>(), static_cast<float>(1 + i));
  }
}

// Work that waits for the device cannot be captured. The device stays usable, with and without other graphs.
TEST_F(GpuGraphsTest, AFailedCaptureLeavesTheDeviceUsable) {
  TITAN_SKIP_IN_REHEARSAL();
  const at::Tensor input = at::ones({1000}, on_device());
  at::Tensor output = at::zeros({1000}, on_device());
  for (const auto memory : {device::GraphMemory::kOwn, device::GraphMemory::kShared}) {
    EXPECT_ANY_THROW(graphs().capture([&] { (input * 2).sum().item<float>(); }, memory));
    EXPECT_ANY_THROW(graphs().capture(
        [&] {
          (input * 2).sum();
          TORCH_CHECK(false, "gave up");
        },
        memory));
    EXPECT_EQ((input * 3).sum().item<float>(), 3000.0F);
    const auto graph = graphs().capture([&] { output.add_(input * 2); }, memory);
    graph->replay();
  }
  EXPECT_EQ(output.sum().item<float>(), 4000.0F);
}

struct GraphCase {
  const char* name;
  const char* family;
  const char* flavor;
  parallel::Precision precision;
  parallel::CheckpointOptions ac;
  double tolerance;                                             // Relative, for losses.
  std::optional<nn::LowPrecisionRecipe> recipe = std::nullopt;  // For the layers' matrices.

  friend void PrintTo(const GraphCase& value, std::ostream* out) { *out << value.name; }
};

class GpuBlockGraphsTest : public GpuTest, public ::testing::WithParamInterface<GraphCase> {};

// Compares the losses of six steps, three of them replayed, and of a forward pass after them. A replay runs no code of
// the layers.
TEST_P(GpuBlockGraphsTest, TrainTheSameAsWithoutGraphs) {
  TrainingPlan plan = plan_of(GetParam().family, GetParam().flavor);
  if (plan.spec.moe && !device_->has_grouped_kernel()) GTEST_SKIP() << "the host calls experts one by one here";
  plan.steps = 6;
  plan.sharding.precision = GetParam().precision;
  plan.sharding.ac = GetParam().ac;
  if (GetParam().recipe) {
    nn::set_cuda_capability(device_->cuda_capability());
    plan.convert = [recipe = *GetParam().recipe](model::Model& model) {
      testing::convert_layers(model, {.recipe = recipe});
    };
  }
  const DeviceOutcome plain = train_on(tested_device().value(), plan);
  std::vector<std::string> messages;
  plan.sharding.graphs = {.wanted = true, .say = [&](const std::string& text) { messages.push_back(text); }};
  const LayerPasses passes;
  const DeviceOutcome as_graphs = train_on(tested_device().value(), plan);
  for (int step = 0; step < plan.steps; ++step) {
    EXPECT_NEAR(as_graphs.losses[step] / plain.losses[step], 1, GetParam().tolerance) << "step " << step + 1;
  }
  EXPECT_NEAR(as_graphs.evaluated / plain.evaluated, 1, GetParam().tolerance);
  EXPECT_TRUE(messages.empty()) << messages.front();
  EXPECT_EQ(passes.backward(), rehearses() ? plan.steps : 3);
}

constexpr parallel::Precision kDoubleTypes{.master = at::kDouble, .param = at::kDouble, .reduce = at::kDouble};
constexpr parallel::Precision kBfloat16Types{.master = at::kFloat, .param = at::kBFloat16, .reduce = at::kFloat};
const parallel::CheckpointOptions kNone{.mode = "none"}, kFull{.mode = "full"},
    kByOperation{.mode = "selective", .selective_ac_option = "op"};

INSTANTIATE_TEST_SUITE_P(
    Families, GpuBlockGraphsTest,
    ::testing::Values(GraphCase{"llama3", "llama3", "debugmodel", kDoubleTypes, kNone, 1e-10},
                      GraphCase{"llama3_again", "llama3", "debugmodel", kDoubleTypes, kFull, 1e-10},
                      GraphCase{"llama3_by_operation", "llama3", "debugmodel", kDoubleTypes, kByOperation, 1e-10},
                      GraphCase{"llama3_mixed", "llama3", "debugmodel", kBfloat16Types, kFull, 2e-3},
                      GraphCase{"llama3_tensorwise", "llama3", "debugmodel", kBfloat16Types, kNone, 2e-3,
                                nn::LowPrecisionRecipe::kFloat8Tensorwise},
                      GraphCase{"llama3_rowwise", "llama3", "debugmodel", kBfloat16Types, kFull, 2e-3,
                                nn::LowPrecisionRecipe::kFloat8Rowwise},
                      GraphCase{"llama3_mxfp8", "llama3", "debugmodel", kBfloat16Types, kNone, 2e-3,
                                nn::LowPrecisionRecipe::kMxfp8},
                      GraphCase{"deepseek_rowwise", "deepseek_v3", "debugmodel", kBfloat16Types, kNone, 5e-3,
                                nn::LowPrecisionRecipe::kFloat8Rowwise},
                      GraphCase{"llama4_experts", "llama4", "debugmodel", kBfloat16Types, kNone, 5e-3},
                      GraphCase{"deepseek_experts", "deepseek_v3", "debugmodel", kBfloat16Types, kByOperation, 5e-3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace titan::runtime
