// Times row operations and products on one thread: each shape at every level of this machine. "GB/s" counts each
// operand once; "of_copy" is its fraction of memcpy's rate on this machine, counted in the same way. torch_rows.py
// times LibTorch's own operations at the same shapes, under the same names.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/kernels/cpu/flat.h"
#include "worker/rank/kernels/cpu/gemm.h"
#include "worker/rank/kernels/cpu/low_bit_adam.h"
#include "worker/rank/kernels/cpu/rms_norm.h"
#include "worker/rank/kernels/cpu/rope.h"
#include "worker/rank/kernels/cpu/router.h"
#include "worker/rank/kernels/cpu/swiglu.h"

namespace titan::kernels {
namespace {

std::mt19937 random_bits(1);

// Allocates as LibTorch does: aligned so that no SIMD vector crosses a cache line.
template <typename T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* values, size_t) { operator delete (values, std::align_val_t{64}); }
  bool operator==(const Aligned&) const { return true; }
};
template <typename T>
using Values = std::vector<T, Aligned<T>>;

Values<uint16_t> bf16(int64_t count) {  // Magnitudes of 0.5 to 2 with either sign.
  Values<uint16_t> values(count);
  for (uint16_t& value : values) value = static_cast<uint16_t>(0x3f00 + (random_bits() & 0x80ff));
  return values;
}
Values<float> fp32(int64_t count) {
  Values<float> values(count);
  for (float& value : values) value = static_cast<float>(random_bits()) * 0x1p-31F - 1;
  return values;
}
std::vector<int64_t> whole(int64_t count, int64_t below) {
  std::vector<int64_t> values(count);
  for (int64_t& value : values) value = static_cast<int64_t>(random_bits() % static_cast<uint64_t>(below));
  return values;
}

double least(const std::vector<double>& all) { return *std::min_element(all.begin(), all.end()); }

// Returns the processor seconds of this thread, because on a busy machine the wall clock means nothing.
double own_time() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the bytes per second that memcpy reads and writes far outside the caches: the best of several runs.
double copy_bandwidth() {
  static const double best = [] {
    constexpr size_t kBytes = size_t{256} << 20;
    Values<char> from(kBytes, 1), to(kBytes, 2);
    double fastest = 0;
    for (int i = 0; i < 8; ++i) {
      const double start = own_time();
      std::memcpy(to.data(), from.data(), kBytes);
      benchmark::DoNotOptimize(to.data());
      benchmark::ClobberMemory();
      fastest = std::max(fastest, 2.0 * kBytes / (own_time() - start));
    }
    return fastest;
  }();
  return best;
}

void add_timed(const std::string& name, const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.05)
      ->Repetitions(5)
      ->ReportAggregatesOnly()
      ->ComputeStatistics("least", least);
}

// `prepare` makes the operands and returns the function to time.
using Run = std::function<bool()>;
void add(const std::string& name_and_shape, int64_t bytes, const std::function<Run(Level)>& prepare) {
  for (const Level level : {Level::kAvx2, Level::kAvx512}) {
    if (!best_level() || level > *best_level()) continue;
    add_timed(name_and_shape + "/" + std::string(name(level)), [=](benchmark::State& state) {
      const Run run = prepare(level);
      const double start = own_time();
      for (auto _ : state) {
        if (!run()) state.SkipWithError("declined");
      }
      const double rate = static_cast<double>(bytes) * static_cast<double>(state.iterations()) / (own_time() - start);
      state.counters["GB/s"] = rate * 1e-9;
      state.counters["of_copy"] = rate / copy_bandwidth();
    });
  }
}

// Adds products at the levels that differ.
void add_gemm(int64_t rows, int64_t columns, int64_t depth) {
  for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16, Level::kAmx}) {
    if (!best_level() || level > *best_level()) continue;
    const std::string of = std::to_string(rows) + "x" + std::to_string(columns) + "x" + std::to_string(depth) + "/";
    const auto timed = [=](benchmark::State& state, const Run& run) {
      const double start = own_time();
      for (auto _ : state) {
        if (!run()) state.SkipWithError("declined");
      }
      const double flops = 2.0 * static_cast<double>(rows * columns * depth) * static_cast<double>(state.iterations());
      state.counters["GFLOP/s"] = flops * 1e-9 / (own_time() - start);
    };
    add_timed("gemm/" + of + std::string(name(level)), [=](benchmark::State& state) {
      const Values<uint16_t> a = bf16(rows * depth), b = bf16(columns * depth);
      Values<uint16_t> c = bf16(rows * columns);
      const std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(64, gemm_scratch(columns, depth, 1)),
                                                           std::free);
      timed(state, [&] {
        return gemm(level, {.rows = rows,
                            .columns = columns,
                            .depth = depth,
                            .a = a.data(),
                            .a_stride = depth,
                            .b = b.data(),
                            .b_stride = depth,
                            .c = c.data(),
                            .c_stride = columns,
                            .scratch = scratch.get()});
      });
    });
    add_timed("weight_gradient/" + of + std::string(name(level)), [=](benchmark::State& state) {
      const Values<uint16_t> dy = bf16(rows * columns), x = bf16(rows * depth);
      Values<uint16_t> c = bf16(columns * depth);
      const std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(64, gemm_scratch(depth, rows, 1)),
                                                           std::free);
      timed(state, [&] {
        return weight_gradient(level, {.rows = rows,
                                       .outputs = columns,
                                       .inputs = depth,
                                       .dy = dy.data(),
                                       .dy_stride = columns,
                                       .x = x.data(),
                                       .x_stride = depth,
                                       .c = c.data(),
                                       .c_stride = depth,
                                       .scratch = scratch.get()});
      });
    });
  }
}

std::string shape(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

void add_norm(int64_t rows, int64_t dim) {
  const std::string of = shape({rows, dim});
  add("rms_norm_forward/" + of, 4 * rows * dim, [=](Level level) -> Run {
    return [=, x = bf16(rows * dim), w = bf16(dim), y = bf16(rows * dim), rms = fp32(rows)]() mutable {
      return rms_norm_forward(level, {.rows = rows,
                                      .dim = dim,
                                      .x = x.data(),
                                      .x_stride = dim,
                                      .weight = w.data(),
                                      .y = y.data(),
                                      .y_stride = dim,
                                      .inverse_rms = rms.data(),
                                      .eps = 1e-5});
    };
  });
  add("rms_norm_backward/" + of, 6 * rows * dim, [=](Level level) -> Run {
    return [=, x = bf16(rows * dim), w = bf16(dim), dy = bf16(rows * dim), dx = bf16(rows * dim), rms = fp32(rows),
            dw = bf16(dim), scratch = fp32(rms_norm_scratch(dim))]() mutable {
      return rms_norm_backward(level, {.rows = rows,
                                       .dim = dim,
                                       .x = x.data(),
                                       .x_stride = dim,
                                       .dy = dy.data(),
                                       .dy_stride = dim,
                                       .weight = w.data(),
                                       .inverse_rms = rms.data(),
                                       .dx = dx.data(),
                                       .dx_stride = dim,
                                       .dweight = dw.data(),
                                       .dweight_type = Dtype::kBf16,
                                       .scratch = scratch.data()});
    };
  });
}

void add_rope(int64_t batches, int64_t tokens, int64_t heads, int64_t dim, bool halves) {
  const int64_t count = batches * tokens * heads * dim;
  const std::string of = shape({batches, tokens, heads, dim}) + (halves ? "/halves" : "/neighbours");
  add("rope/" + of, 4 * count, [=](Level level) -> Run {
    return [=, x = bf16(count), y = bf16(count), table = fp32(tokens * dim)]() mutable {
      return rope(level, {.batches = batches,
                          .tokens = tokens,
                          .heads = heads,
                          .dim = dim,
                          .x = x.data(),
                          .x_batch = tokens * heads * dim,
                          .x_token = heads * dim,
                          .x_head = dim,
                          .y = y.data(),
                          .y_batch = tokens * heads * dim,
                          .y_token = heads * dim,
                          .y_head = dim,
                          .table = table.data(),
                          .halves = halves});
    };
  });
}

void add_swiglu(int64_t rows, int64_t width, float limit) {
  const std::string of = shape({rows, width}) + (limit > 0 ? "/clamped" : "");
  const int64_t step = limit > 0 ? 2 : 1, count = rows * width;  // The clamped form has both parts in one matrix.
  add("swiglu_forward/" + of, 6 * count, [=](Level level) -> Run {
    return [=, gate = bf16(step * count), linear = bf16(count), y = bf16(count)]() mutable {
      return swiglu_forward(level, {.rows = rows,
                                    .width = width,
                                    .gate = gate.data(),
                                    .gate_stride = step * width,
                                    .linear = limit > 0 ? nullptr : linear.data(),
                                    .linear_stride = width,
                                    .y = y.data(),
                                    .y_stride = width,
                                    .limit = limit});
    };
  });
  add("swiglu_backward/" + of, 10 * count, [=](Level level) -> Run {
    return [=, gate = bf16(step * count), linear = bf16(count), dy = bf16(count), dgate = bf16(step * count),
            dlinear = bf16(count)]() mutable {
      return swiglu_backward(level, {.rows = rows,
                                     .width = width,
                                     .gate = gate.data(),
                                     .gate_stride = step * width,
                                     .linear = limit > 0 ? nullptr : linear.data(),
                                     .linear_stride = width,
                                     .dy = dy.data(),
                                     .dy_stride = width,
                                     .dgate = dgate.data(),
                                     .dgate_stride = step * width,
                                     .dlinear = limit > 0 ? nullptr : dlinear.data(),
                                     .dlinear_stride = width,
                                     .limit = limit});
    };
  });
}

void add_cross_entropy(int64_t tokens, int64_t vocabulary) {
  // Writes the gradient to a separate buffer, so that every round reads the same logits.
  add("cross_entropy/" + shape({tokens, vocabulary}), 6 * tokens * vocabulary, [=](Level level) -> Run {
    return [=, logits = bf16(tokens * vocabulary), gradient = bf16(tokens * vocabulary),
            labels = whole(tokens, vocabulary), maximum = fp32(tokens), sum = fp32(tokens),
            label = fp32(tokens)]() mutable {
      return softmax_chunk(level, {.tokens = tokens,
                                   .vocabulary = vocabulary,
                                   .logits = logits.data(),
                                   .stride = vocabulary,
                                   .labels = labels.data(),
                                   .first = true,
                                   .maximum = maximum.data(),
                                   .sum = sum.data(),
                                   .label_logit = label.data()}) &&
             cross_entropy_gradient(level, {.tokens = tokens,
                                            .vocabulary = vocabulary,
                                            .logits = logits.data(),
                                            .stride = vocabulary,
                                            .gradient = gradient.data(),
                                            .gradient_stride = vocabulary,
                                            .labels = labels.data(),
                                            .maximum = maximum.data(),
                                            .sum = sum.data()});
    };
  });
}

void add_flat(int64_t count) {
  const std::string of = shape({count});
  add("adamw/" + of, 28 * count, [=](Level level) -> Run {
    return [=, value = fp32(count), gradient = fp32(count), average = fp32(count),
            square = Values<float>(count, 0.1F)]() mutable {
      return adam(level, {.count = count,
                          .value = value.data(),
                          .gradient = gradient.data(),
                          .average = average.data(),
                          .square = square.data(),
                          .learning_rate = 1e-4,
                          .weight_decay = 0.1,
                          .correction1 = 0.1,
                          .correction2 = 0.001});
    };
  });
  add("squared_norm/" + of, 4 * count, [=](Level level) -> Run {
    return [=, values = fp32(count), result = 0.0]() mutable {
      return squared_norm(level, {.count = count, .values = values.data(), .result = &result});
    };
  });
  add("fp32_to_bf16/" + of, 6 * count, [=](Level level) -> Run {
    return [=, from = fp32(count), to = bf16(count)]() mutable {
      return cast_rows(level, {.width = count, .from = from.data(), .to = to.data(), .to_type = Dtype::kBf16});
    };
  });
  add("bf16_to_fp32/" + of, 6 * count, [=](Level level) -> Run {
    return [=, from = bf16(count), to = fp32(count)]() mutable {
      return cast_rows(level, {.width = count, .from = from.data(), .from_type = Dtype::kBf16, .to = to.data()});
    };
  });
}

// Returns numbers of 4 or 2 bytes, or codes of one byte.
Values<uint8_t> numbers(int64_t count, int64_t bytes) {
  Values<uint8_t> all(count * bytes);
  const Values<float> wide = fp32(bytes == 4 ? count : 0);
  const Values<uint16_t> narrow = bf16(bytes == 2 ? count : 0);
  if (bytes == 4) std::memcpy(all.data(), wide.data(), all.size());
  if (bytes == 2) std::memcpy(all.data(), narrow.data(), all.size());
  for (size_t i = 0; bytes == 1 && i < all.size(); ++i) all[i] = static_cast<uint8_t>(random_bits());
  return all;
}

// Counts these bytes: value read and written, gradient read, both moments read and written.
void add_low_bit_adam(int64_t rows, int64_t columns, KeptMoment::Form form, Dtype type, bool stochastic) {
  const int64_t count = rows * columns, number = type == Dtype::kBf16 ? 2 : 4;
  const bool codes = form == KeptMoment::Form::kCodes;
  const int64_t kept = codes ? 1 : form == KeptMoment::Form::kBf16 ? 2 : 4;
  const std::string name = std::string("low_bit_adam/") +
                           (codes       ? "8bit"
                            : kept == 2 ? "bf16"
                                        : "fp32") +
                           (number == 2 ? "/bf16_values" : "") + (stochastic ? "/by_chance/" : "/");
  add(name + shape({rows, columns}), (3 * number + 4 * kept) * count, [=](Level level) -> Run {
    return [=, value = numbers(count, number), gradient = numbers(count, number), average = numbers(count, kept),
            square = numbers(count, kept), scale = Values<float>(2 * rows * ((columns + 255) / 256), 0.1F)]() mutable {
      float* scales = scale.data();
      return low_bit_adam(level,
                          {.rows = rows,
                           .columns = columns,
                           .value = value.data(),
                           .gradient = gradient.data(),
                           .type = type,
                           .form = form,
                           .average = {average.data(), scales, &dynamic_map(true)},
                           .square = {square.data(), scales + rows * ((columns + 255) / 256), &dynamic_map(false)},
                           .learning_rate = 1e-4,
                           .weight_decay = 0.1,
                           .correction1 = 0.1,
                           .correction2 = 0.001,
                           .stochastic = stochastic,
                           .index_stride = columns});
    };
  });
}

void add_experts(int64_t tokens, int64_t experts, int64_t top_k, int64_t dim) {
  add("router/" + shape({tokens, experts, top_k}), 4 * tokens * experts, [=](Level level) -> Run {
    return [=, logits = fp32(tokens * experts), chosen = whole(tokens * top_k, experts), scores = fp32(tokens * top_k),
            counts = whole(experts, 2)]() mutable {
      return router_forward(level, {.tokens = tokens,
                                    .experts = experts,
                                    .top_k = top_k,
                                    .logits = logits.data(),
                                    .stride = experts,
                                    .normalized = true,
                                    .chosen = chosen.data(),
                                    .scores = scores.data(),
                                    .counts = counts.data()});
    };
  });
  const int64_t rows = tokens * top_k;
  std::vector<int64_t> places(rows);
  for (int64_t i = 0; i < rows; ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), random_bits);
  add("combine/" + shape({tokens, top_k, dim}), 2 * (tokens + rows) * dim, [=](Level level) -> Run {
    return [=, x = bf16(rows * dim), weights = fp32(rows), y = bf16(tokens * dim)]() mutable {
      return sum_rows(level, {.tokens = tokens,
                              .choices = top_k,
                              .width = dim,
                              .x = x.data(),
                              .places = places.data(),
                              .weights = weights.data(),
                              .y = y.data()});
    };
  });
  add("combine_backward/" + shape({tokens, top_k, dim}), 2 * (tokens + 2 * rows) * dim, [=](Level level) -> Run {
    return [=, x = bf16(rows * dim), dx = bf16(rows * dim), weights = fp32(rows), dweights = fp32(rows),
            dy = bf16(tokens * dim)]() mutable {
      return sum_rows_backward(level, {.tokens = tokens,
                                       .choices = top_k,
                                       .width = dim,
                                       .x = x.data(),
                                       .places = places.data(),
                                       .weights = weights.data(),
                                       .dy = dy.data(),
                                       .dx = dx.data(),
                                       .dweights = dweights.data()});
    };
  });
}

}  // namespace
}  // namespace titan::kernels

int main(int argc, char** argv) {
  using namespace titan::kernels;
  benchmark::Initialize(&argc, argv);
  add_norm(16384, 256);
  add_norm(4096, 1024);
  add_rope(8, 2048, 16, 16, false);
  add_rope(4, 1024, 16, 64, true);
  add_swiglu(16384, 768, 0);
  add_swiglu(4096, 2816, 0);
  add_swiglu(4096, 768, 7);
  add_cross_entropy(16384, 2048);
  add_cross_entropy(1024, 16032);
  add_flat(24'500'000);
  using Form = KeptMoment::Form;
  add_low_bit_adam(8192, 2048, Form::kF32, Dtype::kF32, /*stochastic=*/false);
  add_low_bit_adam(8192, 2048, Form::kBf16, Dtype::kF32, /*stochastic=*/false);
  add_low_bit_adam(8192, 2048, Form::kCodes, Dtype::kF32, /*stochastic=*/false);
  add_low_bit_adam(8192, 2048, Form::kBf16, Dtype::kBf16, /*stochastic=*/false);
  add_low_bit_adam(8192, 2048, Form::kCodes, Dtype::kBf16, /*stochastic=*/true);
  add_experts(16384, 64, 6, 256);
  add_gemm(4096, 768, 256);
  add_gemm(1024, 2816, 1024);
  add_gemm(32, 768, 256);  // The shape of one expert.
  benchmark::AddCustomContext("copy GB/s", std::to_string(copy_bandwidth() * 1e-9));
  benchmark::RunSpecifiedBenchmarks();
}
