// Compares weights in 4 bits with their definition, written plainly: in each block, the nearest of sixteen numbers.
#include "worker/rank/nn/nf4.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "common/plan/models/adapters.h"
#include "worker/rank/nn/matmul_autograd.h"

namespace titan::nn {
namespace {

// The sixteen numbers of QLoRA, appendix E, with the paper's digits.
constexpr double kPaper[] = {-1.0,
                             -0.6961928009986877,
                             -0.5250730514526367,
                             -0.39491748809814453,
                             -0.28444138169288635,
                             -0.18477343022823334,
                             -0.09105003625154495,
                             0.0,
                             0.07958029955625534,
                             0.16093020141124725,
                             0.24611230194568634,
                             0.33791524171829224,
                             0.44070982933044434,
                             0.5626170039176941,
                             0.7229568362236023,
                             1.0};

double nearest_number(double share) {
  double best = kPaper[0];
  for (const double number : kPaper) {
    if (std::abs(number - share) < std::abs(best - share)) best = number;
  }
  return best;
}

at::Tensor plain(const at::Tensor& matrix) {
  const at::Tensor wide = matrix.to(at::kFloat).contiguous();
  at::Tensor result = at::empty_like(wide);
  const float* in = wide.const_data_ptr<float>();
  float* out = result.data_ptr<float>();
  for (int64_t block = 0; block < wide.numel(); block += 64) {
    float largest = 0;
    for (int64_t i = 0; i < 64; ++i) largest = std::max(largest, std::abs(in[block + i]));
    for (int64_t i = 0; i < 64; ++i) {
      const double share = largest == 0 ? 0 : in[block + i] / largest;
      out[block + i] = static_cast<float>(nearest_number(share)) * largest;
    }
  }
  return result;
}

at::Tensor pack(const at::Tensor& matrix) {
  at::Tensor packed = at::empty({matrix.size(0), models::nf4_row_bytes(matrix.size(1))}, at::kByte);
  nf4_pack(matrix, packed);
  return packed;
}

TEST(Nf4, IsTheNearestOfSixteenNumbers) {
  std::mt19937 random(3);
  at::manual_seed(3);
  for (int trial = 0; trial < 20; ++trial) {
    const auto rows = static_cast<int64_t>(1 + random() % 40), columns = static_cast<int64_t>(64 * (1 + random() % 6));
    at::Tensor matrix = at::randn({rows, columns}) * std::pow(10.0, static_cast<int>(random() % 7) - 4);
    if (trial % 2 == 1) matrix = matrix.to(at::kBFloat16);
    matrix.view({-1, 64})[0].zero_();
    const at::Tensor packed = pack(matrix);
    EXPECT_EQ(packed.nbytes(), static_cast<size_t>(rows * columns / 64 * 36));
    const at::Tensor numbers = nf4_unpack(packed, at::kFloat);
    // Ratios are compared in float32, so a number midway between two may become either.
    const double share_that_differs = numbers.ne(plain(matrix)).to(at::kDouble).mean().item<double>();
    EXPECT_LE(share_that_differs, 1e-3) << rows << " x " << columns;
    EXPECT_TRUE(pack(numbers).equal(packed)) << "packing is not stable";
    EXPECT_TRUE(nf4_unpack(packed, at::kBFloat16).equal(numbers.to(at::kBFloat16)));
    // Rows are packed independently.
    EXPECT_TRUE(pack(matrix.narrow(0, 0, 1)).equal(packed.narrow(0, 0, 1)));
  }
}

// Products are those with the unpacked weight, and the weight has no gradient.
TEST(Nf4, ProductsReadTheUnpackedWeight) {
  at::manual_seed(4);
  const at::Tensor matrix = at::randn({96, 128}, at::kDouble);
  Parameter weight{.fqn = "layers.0.w.weight", .shape = {96, 128}};
  weight.frozen = true;
  weight.packed_row = models::nf4_row_bytes(128);
  weight.products = &nf4_matmul_recipe();
  weight.weight = pack(matrix);
  const at::Tensor numbers = nf4_unpack(weight.weight, at::kDouble);
  const at::Tensor x = at::randn({2, 5, 128}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = matrix_product(x, weight);
  EXPECT_TRUE(y.equal(at::linear(x, numbers)));
  const at::Tensor dy = at::randn_like(y);
  y.backward(dy);
  EXPECT_TRUE(at::allclose(x.grad(), at::matmul(dy, numbers), 1e-14, 1e-14));
}

}  // namespace
}  // namespace titan::nn
