// Tests eight-bit floats by Titan's own kernels of the device (worker/rank/kernels/cuda/float8.cu), and layers that
// multiply with them.

#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/rank/nn/bf16_oracle.h"
#include "tests/worker/rank/nn/float8_cases.h"
#include "tests/worker/rank/runtime/gpu_world.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/matmul_autograd.h"

namespace titan::runtime {
namespace {

class GpuFloat8Test : public testing::GpuTest {
 protected:
  at::Device where() const { return device_->torch_device(); }
};

TEST_F(GpuFloat8Test, BitsAreThoseOfTheCpu) {
  for (const at::Tensor& x : testing::float8_numbers()) {
    const std::vector<at::Tensor> theirs = testing::float8_of(x);
    const testing::WithDeviceKernels own;
    testing::expect_equal_float8(testing::float8_of(x.to(where())), theirs, x.sizes());
  }
}

// The matrices need many teams, and one of them more numbers than a team handles.
TEST_F(GpuFloat8Test, BitsOfLargeMatrices) {
  TITAN_SKIP_IN_REHEARSAL();
  at::manual_seed(19);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2048, 6000}, {4112, 2056}, {7, 40008}}) {
    const at::Tensor x = at::randn({rows, columns}).to(at::kBFloat16);
    const std::vector<at::Tensor> theirs = testing::float8_of(x);
    const testing::WithDeviceKernels own;
    testing::expect_equal_float8(testing::float8_of(x.to(where())), theirs, x.sizes());
  }
}

TEST_F(GpuFloat8Test, GroupsArePadded) {
  at::manual_seed(21);
  for (const auto& [columns, sizes] : testing::float8_groups()) {
    const at::Tensor x = testing::float8_rows_of(columns, sizes, /*of_no_group=*/9);
    const std::vector<at::Tensor> theirs = testing::float8_padded_groups(x, sizes);
    const testing::WithDeviceKernels own;
    testing::expect_equal_float8(testing::float8_padded_groups(x.to(where()), sizes), theirs, x.sizes());
  }
}

TEST_F(GpuFloat8Test, BytesAreTransposed) {
  const testing::WithDeviceKernels own;
  testing::check_turned_bytes(where());
}

// Compares a layer's result and gradients, by the device's eight-bit products, with fp64 products of the same eight-bit
// numbers on the CPU. Only the rounding of sums and to bf16 differs.
TEST_F(GpuFloat8Test, LayersMultiplyTheirEightBits) {
  if (!testing::rehearses()) nn::set_cuda_capability(device_->cuda_capability());
  at::manual_seed(20);
  for (const nn::LowPrecisionRecipe recipe :
       {nn::LowPrecisionRecipe::kFloat8Tensorwise, nn::LowPrecisionRecipe::kFloat8Rowwise,
        nn::LowPrecisionRecipe::kFloat8RowwiseGwHp}) {
    for (const auto& [rows, in, out] :
         {std::tuple<int64_t, int64_t, int64_t>{64, 96, 160}, {48, 200, 72}, {19, 40, 24}}) {
      const testing::Tensors leaves = {testing::rounded({1, rows, in}), testing::rounded({out, in})};
      const at::Tensor dy = testing::rounded({1, rows, out});
      const auto computed = [&](at::Device device, bool emulate) {
        const auto products = nn::make_low_precision_recipe({.recipe = recipe, .emulate = emulate});
        nn::Parameter weight{"w", {out, in}, {}, {}};
        weight.products = products.get();
        testing::Tensors moved;
        for (const at::Tensor& leaf : leaves) {
          moved.push_back(leaf.to(at::kBFloat16).to(device).requires_grad_());
        }
        weight.weight = moved[1];
        const at::Tensor y = nn::matrix_product(moved[0], weight);
        testing::Tensors all = torch::autograd::grad({y}, moved, {dy.to(at::kBFloat16).to(device)});
        all.push_back(y.detach());
        for (at::Tensor& one : all) one = one.cpu().to(at::kDouble);
        return all;
      };
      const testing::Tensors theirs = computed(at::kCPU, /*emulate=*/true);
      const testing::WithDeviceKernels own;
      const testing::Tensors ours = computed(where(), /*emulate=*/testing::rehearses());
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_LE(testing::relative_error(ours[i], theirs[i]), 0.01) << i << " of recipe " << static_cast<int>(recipe);
      }
    }
  }
}

// Compares experts' rows as well, with groups without rows and rows without a group.
TEST_F(GpuFloat8Test, ExpertsMultiplyTheirEightBits) {
  if (!testing::rehearses()) nn::set_cuda_capability(device_->cuda_capability());
  at::manual_seed(22);
  const std::vector<int32_t> sizes = {37, 0, 5, 64, 16, 1};
  const at::Tensor x = testing::float8_rows_of(64, sizes, /*of_no_group=*/7);
  const at::Tensor dy = testing::float8_rows_of(96, sizes, /*of_no_group=*/7);
  const at::Tensor w = at::randn({6, 96, 64}).to(at::kBFloat16);
  const at::Tensor ends = at::tensor(sizes, at::kInt).cumsum(0).to(at::kInt);
  const at::Tensor beyond = at::arange(x.size(0)).ge(ends[-1].item<int64_t>()).unsqueeze(1);
  for (const nn::LowPrecisionRecipe recipe :
       {nn::LowPrecisionRecipe::kFloat8Rowwise, nn::LowPrecisionRecipe::kFloat8RowwiseGwHp}) {
    const auto computed = [&](at::Device device, bool emulate) {
      const auto products = nn::make_low_precision_recipe({.recipe = recipe, .emulate = emulate});
      const nn::RowGroups groups{.ends = ends.to(device), .beyond = beyond.to(device)};
      const nn::Operand rows{x.to(device), {}}, gradient{dy.to(device), {}}, weights{w.to(device), {}};
      testing::Tensors all = {products->grouped_matmul_nt(rows, weights, groups),
                              products->grouped_matmul_nn(gradient, weights, groups),
                              products->grouped_weight_gradient(gradient, rows, groups)};
      for (at::Tensor& one : all) one = one.cpu().to(at::kDouble);
      return all;
    };
    const testing::Tensors theirs = computed(at::kCPU, /*emulate=*/true);
    for (const bool kernels : {false, true}) {
      std::optional<testing::WithDeviceKernels> own;
      if (kernels) own.emplace();
      const testing::Tensors ours = computed(where(), /*emulate=*/testing::rehearses());
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_LE(testing::relative_error(ours[i], theirs[i]), 0.01) << i << (kernels ? " by own kernels" : "");
      }
    }
  }
}

}  // namespace
}  // namespace titan::runtime
