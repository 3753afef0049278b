#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "tests/worker/rank/kernels/harness.h"
#include "worker/rank/kernels/cuda/cross_entropy_body.h"
#include "worker/rank/kernels/cuda/expert_rows_body.h"
#include "worker/rank/kernels/cuda/float8_body.h"
#include "worker/rank/kernels/cuda/low_bit_adam_body.h"
#include "worker/rank/kernels/cuda/rms_norm_body.h"
#include "worker/rank/kernels/cuda/rope_body.h"
#include "worker/rank/kernels/cuda/swiglu_body.h"
#include "worker/rank/kernels/device_kernels.h"

// Runs the bodies of the GPU's row operations (worker/rank/kernels/cuda) on the host. Teams run their threads one after
// the other: each thread has the same work as on a GPU, and sums have the same order.
namespace titan::kernels::testing {

class SimulatedTeam {
 public:
  // `lanes`: threads of a warp. A warp merges its lanes by halves; warps merge in order.
  SimulatedTeam(int size, int lanes, float* memory) : size_(size), lanes_(lanes), memory_(memory) {}

  float* memory() const { return memory_; }
  void barrier() const {}  // All threads finish their work before the next call begins.
  template <typename F>
  void each(int64_t n, const F& f) const {
    for (int thread = 0; thread < size_; ++thread) {
      for (int64_t i = thread; i < n; i += size_) f(i);
    }
  }
  template <typename F>
  void once(const F& f) const {
    f();
  }
  template <typename A, typename Step, typename Merge>
  A fold(int64_t n, A start, const Step& step, const Merge& merge) const {
    std::vector<A> own(size_, start);
    for (int thread = 0; thread < size_; ++thread) {
      for (int64_t i = thread; i < n; i += size_) own[thread] = step(own[thread], i);
    }
    for (int warp = 0; warp < size_; warp += lanes_) {
      for (int apart = lanes_ / 2; apart > 0; apart /= 2) {
        for (int lane = warp; lane < warp + apart; ++lane) own[lane] = merge(own[lane], own[lane + apart]);
      }
    }
    A result = own[0];
    for (int warp = lanes_; warp < size_; warp += lanes_) result = merge(result, own[warp]);
    return result;
  }

 private:
  const int size_, lanes_;
  float* const memory_;
};

template <template <typename, int> class Body, typename T, int N>
int width_of(const Body<T, N>&) {
  return N;
}
template <typename Body>
int width_of(const Body&) {
  return 1;
}

struct SimulatedGrid {
  bool has_memory;
  int width = 0;  // Vector width of the last body over rows.

  template <typename Body>
  void operator()(const Body& body, int64_t rows, int threads, int64_t floats = 0) {
    width = width_of(body);
    const Buffer<float> memory(floats);
    for (int64_t row = 0; row < rows; ++row) {
      std::fill_n(memory.data(), floats, std::numeric_limits<float>::quiet_NaN());  // Undefined at first.
      SimulatedTeam team(threads, 32, floats > 0 && has_memory ? memory.data() : nullptr);
      body(team, row);
    }
  }
  template <typename Body>
  void columns(const Body& body, int64_t columns) const {
    for (int64_t column = 0; column < columns; ++column) {
      SimulatedTeam team(device::kColumnThreads, 1, nullptr);
      body(team, column);
    }
  }
};

class SimulatedKernels final : public DeviceKernels {
 public:
  // `has_memory`: whether teams get the shared memory that they request.
  explicit SimulatedKernels(bool has_memory = true) : has_memory_(has_memory) {}

  bool run(const RmsNormForward& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::rms_norm_forward<decltype(number)>(args, grid); });
  }
  bool run(const RmsNormBackward& args) const override {
    return on_grid(args.type,
                   [&](auto number, auto& grid) { device::rms_norm_backward<decltype(number)>(args, grid); });
  }
  bool run(const RopeRotation& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::rope<decltype(number)>(args, grid); });
  }
  bool run(const SwigluForward& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::swiglu_forward<decltype(number)>(args, grid); });
  }
  bool run(const SwigluBackward& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::swiglu_backward<decltype(number)>(args, grid); });
  }
  bool run(const SumRows& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::sum_rows<decltype(number)>(args, grid); });
  }
  bool run(const SumRowsBackward& args) const override {
    if (args.weights == nullptr && args.dx != nullptr) return false;
    return on_grid(args.type,
                   [&](auto number, auto& grid) { device::sum_rows_backward<decltype(number)>(args, grid); });
  }
  bool run(const SoftmaxChunk& args) const override {
    return on_grid(args.type, [&](auto number, auto& grid) { device::softmax_chunk<decltype(number)>(args, grid); });
  }
  bool run(const CrossEntropyGradient& args, const float* scale) const override {
    return on_grid(args.type, [&](auto number, auto& grid) {
      device::cross_entropy_gradient<decltype(number)>(args, scale, grid);
    });
  }
  bool run(const CrossEntropyLoss& args, float* loss) const override {
    SimulatedGrid grid{has_memory_};
    device::cross_entropy_loss(args, loss, grid);
    return true;
  }
  bool run(const LowBitAdam& args, const DeviceStep& where) const override {
    SimulatedGrid grid{true};
    device::low_bit_adam(args, where, grid);
    return true;
  }
  bool run(const Float8Amax& args) const override { return by_eights(args); }
  bool run(const Float8ColumnAmax& args) const override { return by_eights(args); }
  bool run(const Float8Cast& args) const override { return by_eights(args); }
  bool run(const Float8Rows& args) const override { return by_eights(args); }
  bool run(const Float8Columns& args) const override { return by_eights(args); }
  bool run(const TransposeBytes& args) const override { return by_eights(args); }
  bool run(const FindPaddedRows& args) const override { return by_eights(args); }
  bool on_host() const override { return true; }

  int width() const { return width_; }  // Vector width of the last operation over rows.

 private:
  template <typename Args>
  bool by_eights(const Args& args) const {
    if (!device::takes(args)) return false;
    SimulatedGrid grid{true};  // These operations request little memory and cannot run without it.
    device::float8(args, grid);
    return true;
  }

  // Calls body(a number of the type, grid).
  template <typename Body>
  bool on_grid(Dtype type, const Body& body) const {
    SimulatedGrid grid{has_memory_};
    type == Dtype::kF32 ? body(float{}, grid) : body(uint16_t{}, grid);
    width_ = grid.width;
    return true;
  }

  const bool has_memory_;
  mutable std::atomic<int> width_{0};  // Ranks may be threads.
};

// The kernels that compute a row operation: the CPU's kernels of a level, or a GPU's bodies on the host.
struct Computer {
  std::optional<Level> level;
  int threads = 1;
  const SimulatedKernels* device = nullptr;

  template <typename Args>
  bool run(bool (*cpu)(Level, const Args&), Args args) const {
    if (device != nullptr) return device->run(args);
    args.threads = threads;
    return cpu(*level, args);
  }
};

// Runs the body with every computer. Failures name it.
inline void for_each_computer(const std::function<void(const Computer& by)>& body) {
  at_every_level([&](Level level, int threads) { body({level, threads, nullptr}); });
  for (const bool has_memory : {true, false}) {
    SCOPED_TRACE(has_memory ? "a GPU's teams" : "a GPU's teams without shared memory");
    const SimulatedKernels kernels(has_memory);
    body({std::nullopt, 1, &kernels});
  }
}

}  // namespace titan::kernels::testing
