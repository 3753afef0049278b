// Times a head and its loss, forward and backward, with all logits at once and in parts of the vocabulary, and reports
// the peak memory in addition to the operands.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "common/plan/models/activations.h"
#include "tests/testing/allocation_meter.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/matmul_autograd.h"

namespace titan::nn {
namespace {

void head(benchmark::State& state, const std::string& kernels, int64_t max_bytes) {
  kernels::choose(kernels);
  const int64_t tokens = state.range(0), dim = state.range(1), vocabulary = state.range(2);
  const auto options = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor x = at::randn({1, tokens, dim}, options).requires_grad_();
  Parameter weight{"output.weight", {vocabulary, dim}, {}, {}};
  weight.weight = (at::randn({vocabulary, dim}, options) * 0.03).detach().requires_grad_();
  const at::Tensor labels = at::randint(vocabulary, {1, tokens}, at::kLong);
  const int64_t columns = models::logit_columns(tokens, vocabulary, 2, max_bytes);
  testing::AllocationMeter meter;
  const testing::AllocationMeter::Scope scope(meter);
  int64_t peak_bytes = 0;
  for (auto _ : state) {
    const int64_t before = meter.begin();
    const at::Tensor loss = columns < vocabulary ? head_cross_entropy_sum(x, weight, labels, columns)
                                                 : cross_entropy_sum(matrix_product(x, weight), labels);
    benchmark::DoNotOptimize(torch::autograd::grad({loss}, {x, weight.weight}));
    peak_bytes = meter.highest() - before;
  }
  const int64_t parts = (vocabulary + columns - 1) / columns;
  state.counters["parts"] = static_cast<double>(parts);
  state.counters["MiB"] = static_cast<double>(peak_bytes) / (1 << 20);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({4096, 256, 2048})->Args({1024, 256, 128256})->Args({1024, 1024, 128256})->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(head, auto_at_once, "auto", 0)->Apply(shapes);
BENCHMARK_CAPTURE(head, auto_in_parts_of_64_MiB, "auto", 64 << 20)->Apply(shapes);
BENCHMARK_CAPTURE(head, auto_in_parts_of_16_MiB, "auto", 16 << 20)->Apply(shapes);
BENCHMARK_CAPTURE(head, auto_in_parts_of_4_MiB, "auto", 4 << 20)->Apply(shapes);

}  // namespace
}  // namespace titan::nn

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
