// Compares the engine on a CUDA device with the same engine on the CPU: in float64, where both must give the same
// numbers; in float32; and in bfloat16, where they come close.

#include <functional>

#include "tests/worker/rank/comm/interposed_backend.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/runtime/gpu_world.h"

namespace titan::runtime {
namespace {

using testing::DeviceOutcome;
using testing::DeviceTraining;
using testing::GpuTest;
using testing::plan_of;
using testing::rehearses;
using testing::relative_error;
using testing::tested_device;
using testing::train_on;
using testing::TrainingPlan;

constexpr parallel::Precision kMixed{.master = at::kFloat, .param = at::kBFloat16, .reduce = at::kFloat};
constexpr parallel::Precision kSingle{};

// Returns the largest relative differences: of the losses, and of any parameter's gradient.
std::pair<double, double> differences(const DeviceOutcome& got, const DeviceOutcome& expected) {
  double loss = std::abs(got.evaluated / expected.evaluated - 1), gradient = 0;
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    loss = std::max(loss, std::abs(got.losses[step] / expected.losses[step] - 1));
  }
  for (const auto& [fqn, right] : expected.gradients) {
    gradient = std::max(gradient, relative_error(got.gradients.at(fqn), right));
  }
  return {loss, gradient};
}

struct Model {
  const char* family;
  const char* flavor;

  friend void PrintTo(const Model& value, std::ostream* out) { *out << value.family << " " << value.flavor; }
};

class GpuModelTest : public GpuTest, public ::testing::WithParamInterface<Model> {};

// Compares the losses of three steps, every parameter's gradient, and the loss of a forward pass.
TEST_P(GpuModelTest, TrainsAsTheCpuDoes) {
  const TrainingPlan plan = plan_of(GetParam().family, GetParam().flavor);
  const DeviceOutcome cpu = train_on(comm::make_cpu_device(), plan);
  const auto [loss, gradient] = differences(train_on(tested_device().value(), plan), cpu);
  EXPECT_LE(loss, 1e-9);
  EXPECT_LE(gradient, 1e-8);
  RecordProperty("float64", std::to_string(loss) + " " + std::to_string(gradient));
}

// Uses the types of usual jobs, bfloat16 weights and activations and float32 shards, and compares with float64 on the
// CPU from the same initial weights. Sigmoid and softmax routers flip near-ties, so experts' gradients are covered only
// by the norm of all.
TEST_P(GpuModelTest, MixedPrecisionComesClose) {
  TrainingPlan plan = plan_of(GetParam().family, GetParam().flavor);
  plan.steps = 1;
  const DeviceOutcome exact = train_on(comm::make_cpu_device(), plan);
  plan.sharding.precision = kMixed;
  const DeviceOutcome mixed = train_on(tested_device().value(), plan);
  EXPECT_NEAR(mixed.losses[0] / exact.losses[0], 1, 5e-3);
  EXPECT_NEAR(mixed.norm / exact.norm, 1, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuModelTest,
                         ::testing::Values(Model{"llama3", "debugmodel"}, Model{"llama3", "debugmodel_flex_attn"},
                                           Model{"llama4", "debugmodel"}, Model{"llama4", "debugmodel_irope"},
                                           Model{"deepseek_v3", "debugmodel"}, Model{"qwen3", "debugmodel"},
                                           Model{"qwen3", "debugmodel_moe"}, Model{"gpt_oss", "debugmodel"}),
                         [](const auto& info) { return std::string(info.param.family) + "_" + info.param.flavor; });

// TF32 is off, as it is in LibTorch by default.
TEST_F(GpuTest, SinglePrecisionMatches) {
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  plan.sharding.precision = kSingle;
  const DeviceOutcome cpu = train_on(comm::make_cpu_device(), plan);
  const auto [loss, gradient] = differences(train_on(tested_device().value(), plan), cpu);
  EXPECT_LE(loss, 1e-5);
  EXPECT_LE(gradient, 1e-4);
}

TEST_F(GpuTest, MixedPrecisionGradientsOfADenseModel) {
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  plan.steps = 1;
  const DeviceOutcome exact = train_on(comm::make_cpu_device(), plan);
  plan.sharding.precision = kMixed;
  EXPECT_LE(differences(train_on(tested_device().value(), plan), exact).second, 0.05);
  const testing::WithDeviceKernels own;
  EXPECT_LE(differences(train_on(tested_device().value(), plan), exact).second, 0.05);
}

// Titan's own kernels for row operations come as close to float64 as LibTorch's operations must.
TEST_F(GpuTest, MixedPrecisionByTitansKernels) {
  for (const auto& [family, flavor] : std::vector<std::pair<std::string, std::string>>{{"llama3", "debugmodel"},
                                                                                       {"deepseek_v3", "debugmodel"},
                                                                                       {"qwen3", "debugmodel"},
                                                                                       {"gpt_oss", "debugmodel"}}) {
    if (rehearses() && family != "llama3") continue;  // A CPU needs minutes for experts in bf16.
    TrainingPlan plan = plan_of(family, flavor);
    plan.steps = 1;
    const DeviceOutcome exact = train_on(comm::make_cpu_device(), plan);
    plan.sharding.precision = kMixed;
    const testing::WithDeviceKernels own;
    const DeviceOutcome mixed = train_on(tested_device().value(), plan);
    EXPECT_NEAR(mixed.losses[0] / exact.losses[0], 1, 5e-3) << family;
    EXPECT_NEAR(mixed.norm / exact.norm, 1, 0.05) << family;
  }
}

// Every way to recompute gives the gradients of a run that saves everything.
TEST_F(GpuTest, ActivationCheckpointing) {
  for (const char* flavor : {"debugmodel", "debugmodel_flex_attn"}) {
    TrainingPlan plan = plan_of("llama3", flavor);
    plan.steps = 2;
    const DeviceOutcome reference = train_on(tested_device().value(), plan);
    for (const auto& [mode, option] : std::vector<std::pair<std::string, std::string>>{
             {"full", "2"}, {"selective", "2"}, {"selective", "op"}, {"memory_budget", "2"}}) {
      plan.sharding.ac = {.mode = mode, .selective_ac_option = option};
      const auto [loss, gradient] = differences(train_on(tested_device().value(), plan), reference);
      EXPECT_LE(loss, 1e-12) << flavor << " " << mode << " " << option;
      EXPECT_LE(gradient, 1e-11) << flavor << " " << mode << " " << option;
    }
  }
}

// Experts are recomputed, too, and their exchange and routing run again.
TEST_F(GpuTest, ActivationCheckpointingOfExperts) {
  TrainingPlan plan = plan_of("deepseek_v3", "debugmodel");
  plan.steps = 1;
  const DeviceOutcome reference = train_on(tested_device().value(), plan);
  for (const auto& [mode, option] :
       std::vector<std::pair<std::string, std::string>>{{"full", "2"}, {"selective", "op"}}) {
    plan.sharding.ac = {.mode = mode, .selective_ac_option = option};
    EXPECT_LE(differences(train_on(tested_device().value(), plan), reference).second, 1e-11) << mode << " " << option;
  }
}

// Recomputation lowers the peak of memory.
TEST_F(GpuTest, RecomputationSavesMemory) {
  TITAN_SKIP_IN_REHEARSAL();
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  plan.sharding.precision = kMixed;
  plan.global_batch = 8;
  plan.seq_len = 1024;
  const auto peak = [&](const std::string& mode) {
    plan.sharding.ac.mode = mode;
    DeviceTraining training(plan, tested_device().value());
    training.run();
    training.update();
    training.device().reset_peak_memory();
    training.run();
    return training.device().memory().peak_active;
  };
  EXPECT_LT(peak("full"), peak("none"));
}

// Master shards, gradients and the optimizer in the host's memory give the same numbers.
TEST_F(GpuTest, Offload) {
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  const DeviceOutcome here = train_on(tested_device().value(), plan);
  plan.sharding.cpu_offload = true;
  const auto [loss, gradient] = differences(train_on(tested_device().value(), plan), here);
  EXPECT_LE(loss, 1e-10);
  EXPECT_LE(gradient, 1e-11);
}

// With offloaded mixed precision, the next step uses what the optimizer wrote on the host.
TEST_F(GpuTest, OffloadInMixedPrecision) {
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  plan.steps = 4;
  plan.sharding.precision = kMixed;
  const DeviceOutcome here = train_on(tested_device().value(), plan);
  plan.sharding.cpu_offload = true;
  const DeviceOutcome there = train_on(tested_device().value(), plan);
  for (size_t step = 0; step < here.losses.size(); ++step) {
    EXPECT_NEAR(there.losses[step] / here.losses[step], 1, 1e-2) << "step " << step + 1;
  }
}

// Under debug.deterministic every operation has a deterministic form, and two runs have the same bits.
TEST_F(GpuTest, DeterministicRunsHaveTheSameBits) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  for (const auto& [family, flavor] : std::vector<std::pair<std::string, std::string>>{
           {"llama3", "debugmodel"}, {"llama3", "debugmodel_flex_attn"}, {"deepseek_v3", "debugmodel"}}) {
    TrainingPlan plan = plan_of(family, flavor);
    plan.sharding.precision = kMixed;
    const DeviceOutcome one = train_on(tested_device().value(), plan), other = train_on(tested_device().value(), plan);
    EXPECT_EQ(one.losses, other.losses) << family;
    for (const auto& [fqn, gradient] : one.gradients) EXPECT_TRUE(gradient.equal(other.gradients.at(fqn))) << fqn;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

// Steps leak no memory: the peak of the sixth is that of the third.
TEST_F(GpuTest, MemoryIsSteady) {
  TITAN_SKIP_IN_REHEARSAL();
  for (const auto& [family, mode] :
       std::vector<std::pair<std::string, std::string>>{{"llama3", "none"}, {"llama3", "full"}, {"qwen3", "none"}}) {
    TrainingPlan plan = plan_of(family, "debugmodel");
    plan.sharding.precision = kMixed;
    plan.sharding.ac.mode = mode;
    plan.seq_len = 512;
    DeviceTraining training(plan, tested_device().value());
    std::vector<int64_t> peaks;
    for (int step = 0; step < 6; ++step) {
      training.device().synchronize();
      training.device().reset_peak_memory();
      training.run();
      training.update();
      peaks.push_back(training.device().memory().peak_active);
    }
    for (size_t step = 3; step < peaks.size(); ++step) EXPECT_EQ(peaks[step], peaks[2]) << family << ", AC " << mode;
  }
}

// Makes ranks that are threads share the device. Their collectives are copies on its one stream, so sharded weights,
// gathers into freed storage, prefetch, reduction and a pipeline's messages run on it with more than one rank. (NCCL
// refuses two ranks on one device. Exchanges inside a backward pass are left out: LibTorch runs all backward passes of
// a device on one thread, which would wait for itself.)
class SharedDevice final : public testing::ForwardingDevice {
 public:
  explicit SharedDevice(const std::shared_ptr<comm::LocalHub>& hub)
      : ForwardingDevice(tested_device().value()), meeting_(comm::make_local_device(hub)) {}

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return meeting_->make_backend(options);
  }

 private:
  const std::unique_ptr<device::Device> meeting_;
};

// Runs `body` for every rank of a world on the shared device.
void run_shared(const mesh::Degrees& degrees, int size, const std::function<void(testing::ThreadRank&)>& body) {
  const auto shared = [](int, const std::shared_ptr<comm::LocalHub>& hub) {
    return std::make_unique<SharedDevice>(hub);
  };
  testing::rethrow_cause(testing::run_world(
      {.degrees = degrees, .size = size, .make_device = shared, .store = {}, .timeout = std::chrono::seconds(60)},
      body));
}

// Trains as `rank` of a world of threads, with its rows of every step on the device.
DeviceOutcome train_shared(const TrainingPlan& plan, testing::ThreadRank& self) {
  const comm::DeviceMesh& mesh = *self.mesh;
  testing::RankModel model = testing::build_rank(plan, self);
  model.sharded->init_weights(7);
  auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
  DeviceOutcome outcome;
  for (int step = 0; step < plan.steps; ++step) {
    const auto [first, rows] = testing::rows_of_rank(plan, mesh);
    auto microbatches = testing::microbatches_of_run(plan, mesh, step, first, rows, model.schedule.microbatches);
    for (nn::MicrobatchContext& one : microbatches) {
      one.tokens = one.tokens.to(self.device->torch_device());
      one.labels = one.labels.to(self.device->torch_device());
    }
    const int64_t tokens =
        nn::count_valid(testing::rows_of_step(plan, step, 0, plan.global_batch).labels).item<int64_t>();
    model.sharded->reset_gradients();
    at::Tensor loss =
        model.executor->run(model.schedule, microbatches, [tokens] { return at::scalar_tensor(tokens, at::kLong); });
    model.sharded->finish_step();
    mesh.group(mesh::Axis::kWorld).all_reduce(loss).wait();
    outcome.losses.push_back(loss.item<double>() / static_cast<double>(tokens));
    optimizer->step(1e-3);
  }
  return outcome;
}

TEST_F(GpuTest, ManyRanksOnOneDevice) {
  struct Split {
    const char* name;
    mesh::Degrees degrees;
    int world;
    const char* policy;
    bool offload;
  };
  const Split splits[] = {{"FSDP 2", {.dp_shard = 2}, 2, "default", false},
                          {"FSDP 4, always", {.dp_shard = 4}, 4, "always", false},
                          {"HSDP 2 x 2", {.dp_replicate = 2, .dp_shard = 2}, 4, "default", false},
                          {"FSDP 2, offloaded", {.dp_shard = 2}, 2, "default", true},
                          {"PP 2", {.pp = 2}, 2, "default", false},
                          {"PP 2 x FSDP 2, always", {.pp = 2, .dp_shard = 2}, 4, "always", false}};
  TrainingPlan plan = plan_of("llama3", "debugmodel");
  plan.global_batch = 4;
  const DeviceOutcome alone = train_on(comm::make_cpu_device(), plan);
  for (const Split& split : splits) {
    plan.sharding.reshard_after_forward = split.policy;
    plan.sharding.cpu_offload = split.offload;
    std::vector<DeviceOutcome> outcomes(split.world);
    run_shared(split.degrees, split.world,
               [&](testing::ThreadRank& self) { outcomes[self.rank] = train_shared(plan, self); });
    for (int rank = 0; rank < split.world; ++rank) {
      for (int step = 0; step < plan.steps; ++step) {
        EXPECT_NEAR(outcomes[rank].losses[step] / alone.losses[step], 1, 1e-9) << split.name << ", step " << step + 1;
      }
    }
  }
}

// Forward passes run on the axes that exchange data inside blocks: ring attention, sharded products and vocabularies,
// tokens sent to experts. The loss equals one rank's.
TEST_F(GpuTest, ForwardPassesOnEveryAxis) {
  struct Split {
    const char* name;
    mesh::Degrees degrees;
    const char* family;
    std::function<void(model::ParallelOptions&)> change;
  };
  const Split splits[] = {{"TP 2", {.dp_shard = 1, .tp = 2}, "llama3", {}},
                          {"TP 2, overlapped",
                           {.dp_shard = 1, .tp = 2},
                           "llama3",
                           [](model::ParallelOptions& parallel) { parallel.async_tensor_parallel = true; }},
                          {"CP 2", {.dp_shard = 1, .cp = 2}, "llama3", {}},
                          {"CP 2, ring",
                           {.dp_shard = 1, .cp = 2},
                           "llama3",
                           [](model::ParallelOptions& parallel) { parallel.rotate_method = "alltoall"; }},
                          {"EP 2", {.dp_shard = 2, .ep = 2}, "deepseek_v3", {}}};
  const std::pair<parallel::Precision, double> precisions[] = {
      {{at::kDouble, at::kDouble, at::kDouble}, 1e-9}, {kSingle, 1e-5}, {kMixed, 5e-3}};
  for (const Split& split : splits) {
    for (const auto& [precision, tolerance] : precisions) {
      TrainingPlan plan = plan_of(split.family, "debugmodel");
      plan.sharding.precision = precision;
      const double alone = DeviceTraining(plan, tested_device().value()).evaluate();
      if (split.change) split.change(plan.parallel);
      std::vector<double> losses(2);
      run_shared(split.degrees, 2, [&](testing::ThreadRank& self) {
        const comm::DeviceMesh& mesh = *self.mesh;
        testing::RankModel model = testing::build_rank(plan, self);
        model.sharded->init_weights(7);
        const auto [first, count] = testing::rows_of_rank(plan, mesh);
        nn::MicrobatchContext rows = testing::rows_of_step(plan, 0, first, first + count);
        rows.tokens = rows.tokens.to(self.device->torch_device());
        rows.labels = rows.labels.to(self.device->torch_device());
        const parallel::ContextParallel context{.group = &mesh.group(mesh::Axis::kContext)};
        at::Tensor loss =
            model.executor->run(pipeline::forward_only(model.schedule, 1), {parallel::shard_microbatch(rows, context)});
        model.sharded->release();
        mesh.group(mesh::Axis::kLoss).all_reduce(loss).wait();
        losses[self.rank] = loss.item<double>();
      });
      for (const double loss : losses) EXPECT_NEAR(loss / alone, 1, tolerance) << split.name;
    }
  }
}

}  // namespace
}  // namespace titan::runtime
