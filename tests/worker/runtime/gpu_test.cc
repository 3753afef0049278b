// The engine on a CUDA device against the same engine on the CPU, in float64, where both must give the same numbers.
// Skips, saying why, where there is no device or no CUDA library.

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/models/registry.h"
#include "tests/worker/runtime/training_world.h"
#include "worker/nn/init.h"
#include "worker/nn/random.h"

namespace titan::runtime {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = comm::make_device("cuda", 0);
    if (!device.ok()) GTEST_SKIP() << "no GPU: " << device.status().message();
    device_ = *std::move(device);
  }
  std::unique_ptr<comm::Device> device_;
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  // Of the first step, on the CPU.
};

Outcome train_on(std::unique_ptr<comm::Device> device, const testing::TrainingPlan& plan) {
  testing::ThreadRank self;
  self.device = std::move(device);
  self.mesh = std::make_unique<comm::DeviceMesh>(mesh::Mesh::create({}, 1).value(), testing::every_axis(), *self.device,
                                                 self.ledger, comm::DeviceMeshOptions{});
  testing::RankModel model = testing::build_rank(plan, self);
  model.sharded->init_weights(7);
  auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
  Outcome outcome;
  for (int step = 0; step < plan.steps; ++step) {
    nn::MicrobatchContext rows = testing::rows_of_step(plan, step, 0, plan.global_batch);
    const int64_t tokens = nn::count_valid(rows.labels).item<int64_t>();
    rows.tokens = rows.tokens.to(self.device->torch_device());
    rows.labels = rows.labels.to(self.device->torch_device());
    model.sharded->forget_gradients();
    const at::Tensor loss = model.executor->run(model.schedule, {rows}, [tokens] { return tokens; });
    model.sharded->finish_step();
    outcome.losses.push_back(loss.item<double>() / static_cast<double>(tokens));
    for (const auto* placed : model.sharded->parameters()) {
      if (step == 0) outcome.gradients[placed->parameter->fqn] = placed->grad.cpu().clone();
    }
    optimizer->step(1e-3);
  }
  return outcome;
}

// Every family's debug model: loss of three steps and every parameter's gradient.
TEST_F(GpuTest, TrainsAsTheCpuDoesInEveryFamily) {
  for (const std::string& family : models::names()) {
    testing::TrainingPlan plan;
    const auto spec = models::find(family, "debugmodel");
    ASSERT_TRUE(spec.ok()) << spec.status();
    plan.spec = *spec;
    plan.global_batch = 2;
    plan.seq_len = 64;
    const Outcome cpu = train_on(comm::make_cpu_device(), plan);
    const Outcome gpu = train_on(comm::make_device("cuda", 0).value(), plan);
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step] / cpu.losses[step], 1, 1e-9) << family << ", step " << step + 1;
    }
    for (const auto& [fqn, expected] : cpu.gradients) {
      const double scale = expected.square().mean().sqrt().item<double>() + 1e-30;
      const double error = (gpu.gradients.at(fqn) - expected).square().mean().sqrt().item<double>();
      EXPECT_LE(error / scale, 1e-8) << family << " " << fqn;
    }
  }
}

// Initial weights drawn on the device have the CPU's bits, for whole tensors and boxes of them.
TEST_F(GpuTest, DrawsTheSameWeights) {
  nn::Parameter parameter{
      "layers.0.attention.wq.weight", {96, 50}, {nn::Init::Kind::kTruncatedNormal, 0.02, -0.06, 0.06}};
  const std::vector<int64_t> offset{17, 8};
  at::Tensor expected = at::empty({40, 21});
  nn::fill_box(parameter, 11, offset, expected);
  const nn::CutNormal normal(0.02, -0.06, 0.06);
  const comm::NormalBox box{.key = nn::stream_key(11, parameter.fqn),
                            .std = normal.std,
                            .lower = normal.lower,
                            .upper = normal.upper,
                            .below = normal.below,
                            .above = normal.above,
                            .inside = normal.inside,
                            .shape = parameter.shape,
                            .offset = offset,
                            .box = {40, 21}};
  at::Tensor drawn = at::empty({40, 21}, at::TensorOptions().device(device_->torch_device()));
  ASSERT_TRUE(device_->draw(box, drawn));
  EXPECT_TRUE(drawn.cpu().equal(expected));
}

// Storage that is given back can serve others, and comes again.
TEST_F(GpuTest, StorageIsFreedAndFilledAgain) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  at::Tensor tensor = at::ones({kBytes / 4}, at::TensorOptions().device(device_->torch_device()));
  device_->synchronize();
  device_->reset_peak_memory();
  const int64_t with = device_->memory().peak_active;
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  device_->resize_storage(storage, 0);
  device_->reset_peak_memory();
  EXPECT_LE(device_->memory().peak_active, with - kBytes);
  device_->resize_storage(storage, kBytes);
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum().item<float>(), 3.0F * (kBytes / 4));
}

// A group of one rank goes through NCCL all the same.
TEST_F(GpuTest, CollectivesOfOneRank) {
  auto backend = device_->make_backend({.store = c10::make_intrusive<c10d::HashStore>(), .rank = 0, .size = 1});
  at::Tensor values = at::arange(6, at::TensorOptions().device(device_->torch_device()).dtype(at::kFloat));
  std::vector<at::Tensor> tensors{values.clone()};
  backend->allreduce(tensors, {})->wait();
  at::Tensor gathered = at::empty_like(values), scattered = at::empty_like(values), exchanged = at::empty_like(values);
  backend->_allgather_base(gathered, values, {})->wait();
  backend->_reduce_scatter_base(scattered, values, {})->wait();
  std::vector<int64_t> splits{6};
  backend->alltoall_base(exchanged, values, splits, splits, {})->wait();
  for (const at::Tensor& one : {tensors[0], gathered, scattered, exchanged}) EXPECT_TRUE(one.equal(values));
}

}  // namespace
}  // namespace titan::runtime
