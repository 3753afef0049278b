// Times attention at each kernel level of this machine. GFLOP/s counts the products that the mask leaves (two forward,
// five backward). `of_peak` is their fraction of the rate that the level's best instruction reaches in a loop of
// nothing else.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/bench/kernels/peak.h"
#include "worker/rank/kernels/cpu/attention.h"

namespace titan::kernels {
namespace {

struct Case {
  const char* name;
  int64_t batch, heads, kv_heads, tokens, size, v_size;
  int64_t window = 0;
};

constexpr Case kCases[] = {
    {"debug", 8, 16, 16, 2048, 16, 16},    {"d64", 4, 16, 8, 1024, 64, 64},         {"d128", 4, 16, 8, 1024, 128, 128},
    {"latent", 2, 16, 16, 1024, 192, 128}, {"window", 4, 16, 8, 4096, 64, 64, 128}, {"long", 1, 4, 1, 8192, 128, 128},
};

class Problem {
 public:
  Problem(const Case& sizes, int threads)
      : q_(sizes.batch * sizes.heads * sizes.tokens * sizes.size),
        k_(sizes.batch * sizes.kv_heads * sizes.tokens * sizes.size),
        v_(sizes.batch * sizes.kv_heads * sizes.tokens * sizes.v_size),
        o_(sizes.batch * sizes.heads * sizes.tokens * sizes.v_size),
        grad_o_(o_.size()),
        grad_q_(q_.size()),
        grad_k_(k_.size()),
        grad_v_(v_.size()),
        lse_(sizes.batch * sizes.heads * sizes.tokens),
        visible_(sizes.tokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* numbers : {&q_, &k_, &v_, &grad_o_}) {
      for (uint16_t& number : *numbers)
        number = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, normal(random)) >> 16);
    }
    visible_keys({.window = sizes.window}, 0, sizes.tokens, 0, sizes.tokens, visible_.data());
    int64_t pairs = 0;
    for (const KeyRange& range : visible_) pairs += range.end - range.begin;
    product_flops_ = static_cast<double>(sizes.batch * sizes.heads * pairs * (sizes.size + sizes.v_size));
    shape_ = {.batch = sizes.batch,
              .heads = sizes.heads,
              .kv_heads = sizes.kv_heads,
              .queries = sizes.tokens,
              .keys = sizes.tokens,
              .size = sizes.size,
              .v_size = sizes.v_size,
              .scale = 1 / std::sqrt(static_cast<float>(sizes.size)),
              .visible = visible_.data(),
              .threads = threads};
  }

  bool forward(Level level) {
    return attention_forward(level, {.shape = shape_,
                                     .q = in(q_, shape_.heads, shape_.size),
                                     .k = in(k_, shape_.kv_heads, shape_.size),
                                     .v = in(v_, shape_.kv_heads, shape_.v_size),
                                     .o = out(o_, shape_.heads, shape_.v_size),
                                     .lse = lse_.data()});
  }
  bool backward(Level level) {
    return attention_backward(level, {.shape = shape_,
                                      .q = in(q_, shape_.heads, shape_.size),
                                      .k = in(k_, shape_.kv_heads, shape_.size),
                                      .v = in(v_, shape_.kv_heads, shape_.v_size),
                                      .o = in(o_, shape_.heads, shape_.v_size),
                                      .grad_o = in(grad_o_, shape_.heads, shape_.v_size),
                                      .lse = lse_.data(),
                                      .grad_q = out(grad_q_, shape_.heads, shape_.size),
                                      .grad_k = out(grad_k_, shape_.kv_heads, shape_.size),
                                      .grad_v = out(grad_v_, shape_.kv_heads, shape_.v_size)});
  }

  double forward_flops() const { return 2 * product_flops_; }
  double backward_flops() const {  // Three products have the head size of q and k, two that of v.
    const auto size = static_cast<double>(shape_.size), v_size = static_cast<double>(shape_.v_size);
    return 2 * product_flops_ * (3 * size + 2 * v_size) / (size + v_size);
  }

 private:
  template <typename T>
  BasicHeads<T> laid_out(T* data, int64_t heads, int64_t size) const {
    return {data, shape_.queries * heads * size, heads * size, size};
  }
  Heads in(const std::vector<uint16_t>& numbers, int64_t heads, int64_t size) const {
    return laid_out(numbers.data(), heads, size);
  }
  HeadsOut out(std::vector<uint16_t>& numbers, int64_t heads, int64_t size) const {
    return laid_out(numbers.data(), heads, size);
  }

  std::vector<uint16_t> q_, k_, v_, o_, grad_o_, grad_q_, grad_k_, grad_v_;
  std::vector<float> lse_;
  std::vector<KeyRange> visible_;
  AttentionShape shape_;
  double product_flops_ = 0;
};

template <typename Pass>
void measure(benchmark::State& state, Level level, int threads, double flops, const Pass& pass) {
  for (auto _ : state) {
    if (!pass()) return state.SkipWithError("declined");
  }
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(done * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] =
      benchmark::Counter(done * 1e-9 / (bench::peak_gflops(level) * threads), benchmark::Counter::kIsRate);
}

void add_case(const Case& sizes, Level level, int threads) {
  const std::string suffix =
      std::string("/") + sizes.name + "/" + std::string(name(level)) + "/" + std::to_string(threads);
  const auto add = [&](const char* pass, auto body) {
    benchmark::RegisterBenchmark((pass + suffix).c_str(), body)
        ->MeasureProcessCPUTime()
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("forward", [=](benchmark::State& state) {
    Problem problem(sizes, threads);
    measure(state, level, threads, problem.forward_flops(), [&] { return problem.forward(level); });
  });
  add("backward", [=](benchmark::State& state) {
    Problem problem(sizes, threads);
    problem.forward(level);
    measure(state, level, threads, problem.backward_flops(), [&] { return problem.backward(level); });
  });
}

}  // namespace
}  // namespace titan::kernels

int main(int argc, char** argv) {
  using titan::kernels::Level;
  for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAmx}) {
    if (titan::kernels::best_level() < level) continue;
    for (const auto& sizes : titan::kernels::kCases) {
      for (const int threads : {1, 2}) titan::kernels::add_case(sizes, level, threads);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
