// Compares a layer with emulated eight-bit products with the same layer in bf16: forward and backward, one thread.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <optional>
#include <string>

#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/matmul_autograd.h"

namespace titan::nn {
namespace {

void layer(benchmark::State& state, std::optional<LowPrecisionRecipe> recipe) {
  kernels::choose("auto");
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto options = at::TensorOptions().dtype(at::kBFloat16);
  const std::unique_ptr<MatmulRecipe> products =
      recipe ? make_low_precision_recipe({.recipe = *recipe, .rounding = MxRounding::kRceil}) : nullptr;
  const at::Tensor x = at::randn({1, rows, in}, options).requires_grad_();
  Parameter weight{"w", {out, in}, {}, {}};
  weight.weight = (at::randn({out, in}, options) * 0.03).detach().requires_grad_();
  weight.products = products.get();
  const at::Tensor dy = at::randn({1, rows, out}, options);
  for (auto _ : state) {
    const at::Tensor y = matrix_product(x, weight);
    benchmark::DoNotOptimize(torch::autograd::grad({y}, {x, weight.weight}, {dy}));
  }
}

void add(const std::string& name, std::optional<LowPrecisionRecipe> recipe) {
  benchmark::RegisterBenchmark(name.c_str(), [recipe](benchmark::State& state) { layer(state, recipe); })
      ->Args({4096, 256, 768})
      ->Args({1024, 1024, 2816})
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace titan::nn

int main(int argc, char** argv) {
  using titan::nn::LowPrecisionRecipe;
  at::set_num_threads(1);
  titan::nn::add("bf16", std::nullopt);
  titan::nn::add("tensorwise", LowPrecisionRecipe::kFloat8Tensorwise);
  titan::nn::add("rowwise", LowPrecisionRecipe::kFloat8Rowwise);
  titan::nn::add("rowwise_with_gw_hp", LowPrecisionRecipe::kFloat8RowwiseGwHp);
  titan::nn::add("mxfp8", LowPrecisionRecipe::kMxfp8);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
