// Compares Titan's own kernels of the device (worker/rank/kernels/cuda) with fp64 of the same numbers on the CPU.

#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/rank/nn/row_cases.h"
#include "tests/worker/rank/runtime/gpu_world.h"
#include "worker/rank/nn/loss.h"

namespace titan::runtime {
namespace {

using testing::expect_close;
using testing::on;
using testing::rounded;
using testing::Tensors;

class GpuRowsTest : public testing::GpuTest {
 protected:
  at::Device where() const { return device_->torch_device(); }
  const testing::WithDeviceKernels kernels_;
};

TEST_F(GpuRowsTest, RmsNorm) {
  testing::check_rms_norm(where());
  testing::check_rms_norm_of_pieces(where());
}

TEST_F(GpuRowsTest, Rope) { testing::check_rope(where()); }

TEST_F(GpuRowsTest, Swiglu) { testing::check_swiglu(where()); }

TEST_F(GpuRowsTest, ExpertRows) { testing::check_expert_rows(where()); }

TEST_F(GpuRowsTest, CrossEntropy) { testing::check_cross_entropy(where()); }

// Warps and blocks of every size compute rows; the weight's gradient has more parts than rows, or fewer; sums are in
// shared memory and outside it.
TEST_F(GpuRowsTest, RmsNormOfEverySize) {
  at::manual_seed(6);
  for (const auto& [rows, dim] :
       {std::pair<int64_t, int64_t>{3000, 128}, {700, 1536}, {20, 8192}, {2, 12288}, {5, 16384}, {3, 20001}}) {
    expect_close(
        {rounded({rows, dim}), rounded({dim})}, rounded({rows, dim}),
        on(where(), [](const Tensors& t) { return nn::rms_norm(t[0], t[1], 1e-6); }),
        [](const Tensors& t) { return t[0] * (t[0] * t[0]).mean(-1, true).add(1e-6).rsqrt() * t[1]; }, 4,
        "rows of " + std::to_string(dim));
  }
}

TEST_F(GpuRowsTest, WideRowsOfOtherOperations) {
  at::manual_seed(7);
  for (const int64_t width : {2816, 14336}) {
    expect_close(
        {rounded({9, width}), rounded({9, width})}, rounded({9, width}),
        on(where(), [](const Tensors& t) { return nn::swiglu(t[0], t[1]); }),
        [](const Tensors& t) { return at::silu(t[0]) * t[1]; }, 4, "width " + std::to_string(width));
  }
  const at::Tensor labels = at::randint(128256, {1, 6}, at::kLong);
  const auto loss = [&](const Tensors& t) { return nn::cross_entropy_sum(t[0], labels.to(t[0].device())); };
  expect_close({rounded({1, 6, 128256}) * 4}, at::full({}, 0.25), on(where(), loss), loss, 1, "many ids");
}

// The loss is computed in parts of the vocabulary, which are merged.
TEST_F(GpuRowsTest, HeadLoss) {
  at::manual_seed(8);
  const at::Tensor x = rounded({1, 50, 64}), weight = rounded({1000, 64}) * 0.5;
  at::Tensor labels = at::randint(1000, {1, 50}, at::kLong);
  labels.select(1, 3).fill_(nn::kIgnoreIndex);
  const auto by_parts = [&](const Tensors& t) {
    nn::Parameter matrix{"output.weight", {1000, 64}, {}, {}};
    matrix.weight = t[1];
    return nn::head_cross_entropy_sum(t[0], matrix, labels.to(t[0].device()), /*columns=*/300);
  };
  const auto plain = [&](const Tensors& t) { return nn::cross_entropy_sum(at::matmul(t[0], t[1].t()), labels); };
  Tensors leaves, exact;
  for (const at::Tensor& one : {x, weight}) {
    leaves.push_back(one.to(at::kBFloat16).requires_grad_());
    exact.push_back(one.clone().requires_grad_());
  }
  const Tensors ours = testing::results_of(leaves, at::full({}, 0.25), on(where(), by_parts));
  const Tensors truth = testing::results_of(exact, at::full({}, 0.25, at::kDouble), plain);
  EXPECT_NEAR(ours[0].item<double>() / truth[0].item<double>(), 1, 1e-2);
  for (size_t i = 1; i < truth.size(); ++i) EXPECT_LE(testing::relative_error(ours[i], truth[i]), 0.02) << i;
}

// Sums have a fixed order, so two runs have the same bits.
TEST_F(GpuRowsTest, SameBitsEachTime) {
  at::manual_seed(9);
  const at::Tensor x = at::randn({3000, 1024}, on_device(at::kBFloat16)).requires_grad_();
  const at::Tensor weight = at::randn({1024}, on_device(at::kBFloat16)).requires_grad_();
  const at::Tensor dy = at::randn({3000, 1024}, on_device(at::kBFloat16));
  const at::Tensor labels = at::randint(1024, {1, 3000}, on_device(at::kLong));
  const auto run = [&] {
    Tensors results = torch::autograd::grad({nn::rms_norm(x, weight, 1e-6)}, {x, weight}, {dy});
    const at::Tensor loss = nn::cross_entropy_sum(x.unsqueeze(0), labels);
    results.push_back(loss.detach());
    results.push_back(torch::autograd::grad({loss}, {x})[0]);
    return results;
  };
  const Tensors one = run(), other = run();
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << i;
}

}  // namespace
}  // namespace titan::runtime
