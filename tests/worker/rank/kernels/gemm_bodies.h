#pragma once

#include <functional>
#include <string>

#include "tests/worker/rank/kernels/harness.h"
#include "worker/rank/kernels/cpu/gemm.h"

namespace titan::kernels {

// Bodies of wider levels than the machine has, with its own instructions in their place. So any machine tests packing,
// blocks and tails (of tiles: machines with AVX-512). These tests cannot show whether each instruction is used
// correctly.
namespace emulated_dots {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace emulated_dots
namespace emulated_tiles {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace emulated_tiles

namespace testing {

struct GemmBody {
  std::string name;
  std::function<bool(const Gemm&)> gemm;
  std::function<bool(const WeightGradient&)> weight_gradient;
};

template <void (*product)(const Gemm&), void (*gradient)(const WeightGradient&)>
GemmBody emulated(const char* name) {
  return {name, [](const Gemm& args) { return product(args), true; },
          [](const WeightGradient& args) { return gradient(args), true; }};
}

inline std::vector<GemmBody> gemm_bodies() {
  std::vector<GemmBody> all;
  for (const Level level : levels_here()) {
    all.push_back({std::string(name(level)), [level](const Gemm& args) { return gemm(level, args); },
                   [level](const WeightGradient& args) { return weight_gradient(level, args); }});
  }
  if (best_level() >= Level::kAvx2)
    all.push_back(emulated<emulated_dots::gemm, emulated_dots::weight_gradient>("pairs by AVX2"));
  if (best_level() >= Level::kAvx512) {
    all.push_back(emulated<emulated_tiles::gemm, emulated_tiles::weight_gradient>("tiles by AVX-512"));
  }
  return all;
}

// Runs the test with every body, with one and two threads. Failures name both.
inline void with_every_gemm(const std::function<void(const GemmBody& body, int threads)>& test) {
  for (const GemmBody& body : gemm_bodies()) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(body.name + ", threads " + std::to_string(threads));
      test(body, threads);
    }
  }
}

}  // namespace testing
}  // namespace titan::kernels
