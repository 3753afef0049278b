// Measures, with the allocator, how much the optimizer's ways to save memory save.

#include <algorithm>
#include <numeric>

#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/comm/fake_backend.h"
#include "worker/rank/comm/local_store.h"
#include "worker/rank/nn/meta_kernels.h"
#include "worker/rank/runtime/dry_run/meta_tensors.h"

namespace titan::runtime {
namespace {

testing::TrainingPlan wide_plan() {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 12;
  plan.spec.dim = 128;
  plan.spec.ffn_hidden = 256;
  plan.spec.head_dim = plan.spec.v_head_dim = 32;
  plan.spec.vocab_size = 64;
  plan.seq_len = 8;
  plan.global_batch = 4;
  plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
  return plan;
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Returns the bytes of one rank's weights, by unit.
std::vector<int64_t> unit_bytes(ShardedModel& model) {
  std::vector<int64_t> all;
  for (const auto& unit : model.units()) {
    int64_t sum = 0;
    for (const parallel::ShardedParameter& one : unit->parameters()) sum += bytes_of(one.value);
    all.push_back(sum);
  }
  return all;
}

struct StepBytes {
  int64_t rest = 0;  // Live between steps: weights, gradients if they stay, both moments.
  int64_t peak = 0;  // At the peak of a step, `rest` included.
  std::vector<int64_t> units;
};

// Measures the second step of rank 0 of an FSDP group.
StepBytes measure_step(testing::TrainingPlan plan, int world, bool early) {
  plan.sharding.early_step = early;
  StepBytes result;
  std::vector<testing::AllocationMeter> meters(world);
  testing::run_ranks({}, world, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::AllocationMeter& meter = meters[self.rank];
    const testing::AllocationMeter::Scope scope(meter);
    {
      testing::RankModel model = testing::build_rank(plan, self);
      model.sharded->init_weights(1);
      const auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
      if (early) {
        model.sharded->update_early(
            [&](const parallel::ShardUnit&, size_t first, size_t count) { optimizer->step_slots(first, count, 1e-3); });
      }
      StepBytes seen;
      for (int step = 0; step < 2; ++step) {
        seen.rest = meter.begin();
        if (early) optimizer->begin_step();
        testing::forward_backward(plan, *self.mesh, model, step);
        if (!early) optimizer->step(1e-3);
        seen.peak = meter.highest();
      }
      seen.units = unit_bytes(*model.sharded);
      if (self.rank == 0) result = seen;
    }
  });
  return result;
}

// The optimizer's step inside the backward pass saves the memory of all gradients except those in flight: none between
// steps, and at the peak of a step at most those of the two largest units (a block's gradients are reduced while the
// next block's are computed). Weights and moments take the same memory.
TEST(OptimizerMemoryTest, EarlyStepsSaveTheGradients) {
  for (const int world : {1, 2, 4}) {
    const testing::TrainingPlan plan = wide_plan();
    const StepBytes late = measure_step(plan, world, /*early=*/false), early = measure_step(plan, world, true);
    const int64_t gradients = std::accumulate(late.units.begin(), late.units.end(), int64_t{0});
    std::vector<int64_t> units = late.units;
    std::sort(units.rbegin(), units.rend());
    const int64_t margin = units[0] + units[1];
    ASSERT_LT(margin, gradients / 5) << "too few units to tell";
    constexpr int64_t kScalars = 256;
    EXPECT_NEAR(late.rest - early.rest, gradients, kScalars) << world << " ranks";
    EXPECT_LE(early.peak, late.peak - gradients + margin + kScalars) << world << " ranks";
    EXPECT_GE(early.peak, late.peak - gradients - kScalars) << world << " ranks";
    std::printf("early steps on %d ranks: peak %.3f of the usual %ld bytes, gradients %.3f\n", world,
                static_cast<double>(early.peak) / static_cast<double>(late.peak), static_cast<long>(late.peak),
                static_cast<double>(gradients) / static_cast<double>(late.peak));
  }
}

// Returns the bytes of the moments of one rank, as the allocator counts them.
int64_t moment_bytes(const testing::TrainingPlan& plan, const std::string& state_dtype, int world) {
  std::vector<int64_t> bytes(world);
  testing::run_ranks({}, world, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    testing::AllocationMeter meter;
    const testing::AllocationMeter::Scope scope(meter);
    const int64_t before = meter.begin();
    const auto optimizer = optim::make_optimizer({.state_dtype = state_dtype}, model.sharded->optimizer_slots());
    bytes[self.rank] = meter.begin() - before;
  });
  return bytes[0];
}

// bf16 moments take half of float32's bytes. Codes take a quarter, and a 64th of that for the scales. Norms' moments
// stay float32.
TEST(OptimizerMemoryTest, LowPrecisionStatesTakeFewerBytes) {
  testing::TrainingPlan plan = wide_plan();
  plan.spec.dim = plan.spec.ffn_hidden = 256;  // Rows of whole blocks.
  plan.spec.head_dim = plan.spec.v_head_dim = 64;
  for (const int world : {1, 2}) {
    const auto whole = static_cast<double>(moment_bytes(plan, "float32", world));
    const auto half = static_cast<double>(moment_bytes(plan, "bfloat16", world));
    const auto quarter = static_cast<double>(moment_bytes(plan, "8bit", world));
    EXPECT_NEAR(half / whole, 0.5, 1e-3) << world;
    EXPECT_NEAR(quarter / whole, 0.25 + 1.0 / 256, 0.01) << world;
    std::printf("moments on %d ranks: bfloat16 %.4f, 8bit %.4f of float32's %.0f bytes\n", world, half / whole,
                quarter / whole, whole);
  }
}

struct Places {
  int64_t standing = 0;  // Bytes on the device between steps.
  int64_t peak = 0;      // The same at the peak of a forward pass.
  int64_t host = 0;      // Bytes in the host's memory.
  int64_t shard = 0;     // Bytes of this rank's weights.
  int64_t largest_unit = 0;
};

// Measures rank 0 of two on a device that is not the host: LibTorch's meta device, which counts bytes and has no
// values.
Places measure_places(const testing::TrainingPlan& plan) {
  use_meta_memory();
  nn::use_meta_kernels();
  const auto device = comm::make_fake_device();
  comm::Ledger ledger;
  const mesh::Mesh shape = mesh::Mesh::create({}, 2).value();
  const comm::DeviceMesh mesh(shape, testing::every_axis(), *device, ledger,
                              {.rank = 0, .store = c10::make_intrusive<comm::LocalStore>()});
  Places places;
  testing::AllocationMeter meter;
  const testing::AllocationMeter::Scope scope(meter);
  const int64_t before = meta_memory().live_bytes;
  {
    model::Model model = model::build(plan.spec, {.seq_len = plan.seq_len}).value();
    const auto sharded = ShardedModel::create(std::move(model), plan.sharding, mesh, *device).value();
    const auto optimizer = optim::make_optimizer({}, sharded->optimizer_slots());
    places.host = meter.begin();
    places.standing = meta_memory().live_bytes - before;
    for (const int64_t bytes : unit_bytes(*sharded)) {
      places.shard += bytes;
      places.largest_unit = std::max(places.largest_unit, bytes);
    }
    for (const parallel::ShardedParameter* one : sharded->parameters()) {
      EXPECT_EQ(one->value.is_cpu(), plan.sharding.cpu_offload) << one->parameter->fqn;
      EXPECT_EQ(one->grad.is_cpu(), plan.sharding.cpu_offload) << one->parameter->fqn;
      EXPECT_TRUE(one->parameter->weight.is_meta()) << one->parameter->fqn;
    }
    for (const optim::SlotState& state : optimizer->states()) {
      for (const optim::SlotState::Named& one : state.tensors) {
        EXPECT_EQ(one.value.is_cpu(), plan.sharding.cpu_offload) << one.name;
      }
    }
    nn::MicrobatchContext context;
    context.tokens = at::empty({plan.global_batch, plan.seq_len}, at::TensorOptions(at::kMeta).dtype(at::kLong));
    context.labels = at::empty_like(context.tokens);
    reset_meta_peak();
    sharded->stages().at(0)->evaluate(context, {});
    sharded->release();
    places.peak = meta_memory().peak_bytes - before;
    EXPECT_LE(meta_memory().live_bytes - before - places.standing, 4096) << "the pass left memory behind";
  }
  return places;
}

// With offload the device holds no master weights, gradients or moments: between steps only the model's tables, in a
// pass the gathered weights and, briefly, the piece that is sent to be gathered. The host holds each of them once. A
// machine without an accelerator can show where the shards and the optimizer's state are, and how much a forward pass
// takes on a device that is not the host. Nothing can be copied back from the meta device, so this does not cover how
// gradients reach the host. Tests whose device is the host show that gradients are summed there and that the numbers do
// not change (mesh_table_test, "CPU offload"), and gpu_test does where there is a GPU.
TEST(OptimizerMemoryTest, OffloadKeepsMasterStateOffTheDevice) {
  testing::TrainingPlan plan = wide_plan();
  plan.sharding.reshard_after_forward = "always";
  const Places here = measure_places(plan);
  plan.sharding.cpu_offload = true;
  const Places away = measure_places(plan);
  const int64_t state = 4 * here.shard;  // Weights, gradients, two moments.
  EXPECT_EQ(away.shard, here.shard);
  EXPECT_NEAR(here.standing - away.standing, state, 256);
  EXPECT_LE(away.standing, here.standing / 20);
  EXPECT_NEAR(away.host - here.host, state, 256);
  EXPECT_LE(away.peak, here.peak - state + 2 * here.largest_unit);
  EXPECT_GE(away.peak, here.peak - state);
  std::printf("offload: %.3f of the device's bytes between steps, %.3f at the peak of a forward pass\n",
              static_cast<double>(away.standing) / static_cast<double>(here.standing),
              static_cast<double>(away.peak) / static_cast<double>(here.peak));
}

}  // namespace
}  // namespace titan::runtime
