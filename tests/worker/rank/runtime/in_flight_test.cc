// The engine relies only on what an accelerator's streams promise: buffers in flight are neither read, written nor
// freed before wait(), and every collective is waited for. The device of tests/worker/rank/device/guarded_device.h
// fails otherwise; training on it gives the numbers of one rank.
#include "common/plan/models/registry.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/device/guarded_device.h"
#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using testing::RankOutcome;
using testing::TrainingPlan;

std::unique_ptr<device::Device> guarded(int, const std::shared_ptr<comm::LocalHub>& hub) {
  return std::make_unique<testing::GuardedDevice>(comm::make_local_device(hub));
}

std::vector<RankOutcome> train_guarded(const TrainingPlan& plan, const mesh::Degrees& degrees, int world) {
  std::vector<RankOutcome> outcomes(world);
  const auto train = [&](testing::ThreadRank& self) { outcomes[self.rank] = testing::train_rank(plan, self); };
  testing::rethrow_cause(
      testing::run_world({.degrees = degrees, .size = world, .make_device = guarded, .store = {}}, train));
  return outcomes;
}

struct Case {
  const char* name;
  mesh::Degrees degrees;
  int world;
  std::function<void(TrainingPlan&)> change;

  friend void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }
};

class InFlightTest : public ::testing::TestWithParam<Case> {};

TEST_P(InFlightTest, TrainsAsOneRank) {
  TrainingPlan plan;
  plan.spec.vocab_size = 52;
  plan.spec.ffn_hidden = 48;
  plan.steps = 2;
  if (GetParam().change) GetParam().change(plan);
  TrainingPlan alone = plan;
  alone.parallel = {};
  const RankOutcome reference = testing::train_world(alone, {}, 1)[0];
  testing::expect_same_training(reference, train_guarded(plan, GetParam().degrees, GetParam().world), 1e-10);
}

void always(TrainingPlan& plan) { plan.sharding.reshard_after_forward = "always"; }

INSTANTIATE_TEST_SUITE_P(
    Meshes, InFlightTest,
    ::testing::Values(
        Case{"fsdp", {.dp_shard = 2}, 2, {}}, Case{"fsdp_always", {.dp_shard = 2}, 2, always},
        Case{"fsdp_recomputing", {.dp_shard = 2}, 2, [](TrainingPlan& plan) { plan.sharding.ac.mode = "full"; }},
        Case{"fsdp_accumulating", {.dp_shard = 2}, 2, [](TrainingPlan& plan) { plan.microbatches = 2; }},
        Case{"hsdp", {.dp_replicate = 2, .dp_shard = 2}, 4, {}},
        Case{"offloaded",
             {.dp_replicate = 2, .dp_shard = 2},
             4,
             [](TrainingPlan& plan) { plan.sharding.cpu_offload = true; }},
        Case{"tensor", {.dp_shard = 2, .tp = 2}, 4, {}},
        Case{"tensor_overlapped", {.tp = 2}, 2, [](TrainingPlan& plan) { plan.parallel.async_tensor_parallel = true; }},
        Case{"context", {.dp_shard = 1, .cp = 2}, 2, {}},
        Case{"context_ring",
             {.dp_shard = 1, .cp = 4},
             4,
             [](TrainingPlan& plan) { plan.parallel.rotate_method = "alltoall"; }},
        Case{"pipeline", {.pp = 2, .dp_shard = 2}, 4, {}}, Case{"pipeline_always", {.pp = 2, .dp_shard = 2}, 4, always},
        Case{"pipeline_tied", {.pp = 2}, 2, [](TrainingPlan& plan) { plan.spec.tied_embeddings = true; }},
        Case{"pipeline_split",
             {.pp = 2},
             2,
             [](TrainingPlan& plan) {
               plan.schedule = "ZBVZeroBubble";
               plan.spec.n_layers = 4;
               plan.pipeline_microbatches = 4;
             }},
        Case{"experts",
             {.dp_shard = 2, .ep = 2},
             2,
             [](TrainingPlan& plan) {
               plan.spec = models::find("llama4", "debugmodel").value();
               plan.spec.n_layers = 2;
             }}),
    [](const auto& info) { return std::string(info.param.name); });

// The guarded device notices each way to misuse a collective.
TEST(GuardedDeviceTest, NoticesMisuse) {
  const auto hub = std::make_shared<comm::LocalHub>();
  testing::GuardedDevice device(comm::make_local_device(hub));
  const auto backend = device.make_backend({.store = hub->store(), .rank = 0, .size = 1});
  const auto gather = [&](at::Tensor& output, at::Tensor& input) {
    return backend->_allgather_base(output, input, {});
  };
  at::Tensor input = at::ones({4}), output = at::zeros({4});
  {
    const auto work = gather(output, input);
    EXPECT_TRUE(output.isnan().all().item<bool>()) << "a collective in flight must not look finished";
    work->wait();
    EXPECT_TRUE(output.equal(input));
  }
  {
    const auto work = gather(output, input);
    input.add_(1);
    EXPECT_THROW(work->wait(), c10::Error);
  }
  {
    const auto work = gather(output, input);
    output.zero_();
    EXPECT_THROW(work->wait(), c10::Error);
  }
  {
    const auto work = gather(output, input);
    device.resize_storage(*output.storage().unsafeGetStorageImpl(), 0);
    EXPECT_THROW(work->wait(), c10::Error);
  }
}

}  // namespace
}  // namespace titan::runtime
