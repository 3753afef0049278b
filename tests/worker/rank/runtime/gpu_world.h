#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/models/registry.h"
#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/device/allocator_settings.h"
#include "worker/rank/kernels/choice.h"

// Shared by the tests of the CUDA device. They are skipped, with the reason, if there is no device or no CUDA library.
// With TITAN_GPU_TEST_ON=cpu they run on the CPU instead: a rehearsal, which shows that the tests work but shows
// nothing about a GPU (deploy/gpu_check.sh --rehearse).
namespace titan::testing {

inline bool rehearses() {
  const char* on = std::getenv("TITAN_GPU_TEST_ON");
  return on != nullptr && std::string(on) == "cpu";
}

inline absl::StatusOr<std::unique_ptr<device::Device>> tested_device() {
  device::set_segments(true);  // Like a rank.
  return comm::make_device(rehearses() ? "cpu" : "cuda", 0);
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = tested_device();
    if (!device.ok()) GTEST_SKIP() << "no GPU: " << device.status().message();
    device_ = *std::move(device);
  }
  at::TensorOptions on_device(at::ScalarType type = at::kFloat) const {
    return at::TensorOptions().device(device_->torch_device()).dtype(type);
  }
  std::unique_ptr<device::Device> device_;
};

// While this lives, Titan's own kernels of the device compute row operations, or their host versions in a rehearsal.
class WithDeviceKernels {
 public:
  WithDeviceKernels() { kernels::choose_on_device(of_device(), {.model = true, .loss = true, .optimizer = true}); }
  ~WithDeviceKernels() { kernels::choose_on_device(nullptr, {}); }
  WithDeviceKernels(const WithDeviceKernels&) = delete;
  WithDeviceKernels& operator=(const WithDeviceKernels&) = delete;

 private:
  static const kernels::DeviceKernels* of_device() {
    static const kernels::testing::SimulatedKernels on_host;
    if (rehearses()) return &on_host;
    tested_device().IgnoreError();  // Loads the kernels.
    return kernels::cuda_kernels();
  }
};

// Skips what only a GPU supports.
#define TITAN_SKIP_IN_REHEARSAL() \
  if (titan::testing::rehearses()) GTEST_SKIP() << "the CPU does not support this"

// Returns the root mean square of the difference, relative to that of the expected tensor. Both have the same shape, of
// any dims.
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor right = expected.cpu().to(at::kDouble), wrong = got.cpu().to(at::kDouble) - right;
  return (wrong.square().mean() / (right.square().mean() + 1e-60)).sqrt().item<double>();
}

// A model on one device, run as the trainer runs it.
class DeviceTraining {
 public:
  DeviceTraining(const TrainingPlan& plan, std::unique_ptr<device::Device> device) : plan_(plan) {
    self_.device = std::move(device);
    self_.mesh = std::make_unique<comm::DeviceMesh>(mesh::Mesh::create({}, 1).value(), every_axis(), *self_.device,
                                                    self_.ledger, comm::DeviceMeshOptions{});
    model_ = build_rank(plan_, self_);
    model_.sharded->init_weights(7);
    optimizer_ = optim::make_optimizer({}, model_.sharded->optimizer_slots());
  }

  // Runs forward and backward passes, and returns the mean loss.
  double run() {
    nn::MicrobatchContext rows = rows_of_step(plan_, step_, 0, plan_.global_batch);
    const int64_t tokens = nn::count_valid(rows.labels).item<int64_t>();
    rows.tokens = rows.tokens.to(self_.device->torch_device());
    rows.labels = rows.labels.to(self_.device->torch_device());
    model_.sharded->reset_gradients();
    const at::Tensor loss =
        model_.executor->run(model_.schedule, {rows}, [tokens] { return at::scalar_tensor(tokens, at::kLong); });
    model_.sharded->finish_step();
    return loss.item<double>() / static_cast<double>(tokens);
  }
  void update() {
    optimizer_->step(1e-3);
    ++step_;
  }
  // Returns the loss of the first step's rows, from a forward pass only.
  double evaluate() {
    nn::MicrobatchContext rows = rows_of_step(plan_, 0, 0, plan_.global_batch);
    rows.tokens = rows.tokens.to(self_.device->torch_device());
    rows.labels = rows.labels.to(self_.device->torch_device());
    const at::Tensor loss = model_.executor->run(pipeline::forward_only(model_.schedule, 1), {rows});
    model_.sharded->release();
    return loss.item<double>();
  }

  // Returns the gradients by parameter, on the CPU, each in its parameter's shape.
  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> all;
    for (const auto* placed : model_.sharded->parameters()) {
      all[placed->parameter->fqn] = placed->grad.cpu().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    }
    return all;
  }
  std::map<std::string, at::Tensor> weights() {
    std::map<std::string, at::Tensor> all;
    for (const auto* placed : model_.sharded->parameters()) all[placed->parameter->fqn] = placed->value.cpu().clone();
    return all;
  }
  double gradient_norm() { return std::sqrt(optim::sum_of_squares(model_.sharded->gradients()).item<double>()); }
  device::Device& device() { return *self_.device; }

 private:
  const TrainingPlan plan_;
  ThreadRank self_;
  RankModel model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  int step_ = 0;
};

struct DeviceOutcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  // First step, in the parameters' shapes.
  double norm = 0;                              // Norm of `gradients`.
  double evaluated = 0;                         // After the last step.
};

inline DeviceOutcome train_on(std::unique_ptr<device::Device> device, const TrainingPlan& plan) {
  DeviceTraining training(plan, std::move(device));
  DeviceOutcome outcome;
  for (int step = 0; step < plan.steps; ++step) {
    outcome.losses.push_back(training.run());
    if (step == 0) {
      outcome.gradients = training.gradients();
      outcome.norm = training.gradient_norm();
    }
    training.update();
  }
  outcome.evaluated = training.evaluate();
  return outcome;
}

inline TrainingPlan plan_of(const std::string& family, const std::string& flavor) {
  TrainingPlan plan;
  plan.spec = models::find(family, flavor).value();
  plan.spec.n_layers = std::min<int64_t>(plan.spec.n_layers, 4);  // All kinds of layers; more would only take time.
  plan.global_batch = 2;
  plan.seq_len = 64;
  return plan;
}

}  // namespace titan::testing
