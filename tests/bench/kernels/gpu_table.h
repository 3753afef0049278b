#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "tests/bench/kernels/gpu_timing.h"

namespace titan::bench {

// Compares times of LibTorch's operations with Titan's; prints one line for each as soon as it is measured.
class Table {
 public:
  Table(device::Device& device, bool on_gpu)
      : device_(device),
        on_gpu_(on_gpu),
        options_(at::TensorOptions().device(device.torch_device()).dtype(at::kBFloat16)) {
    std::printf("%-52s %9s %9s %10s %7s\n", "bfloat16", "LibTorch", "Titan ms", "", "ratio");
  }

  bool on_gpu() const { return on_gpu_; }
  const at::TensorOptions& options() const { return options_; }
  at::Tensor draw(at::IntArrayRef sizes) const { return at::randn(sizes, options_); }
  at::Tensor leaf(at::IntArrayRef sizes) const { return draw(sizes).requires_grad_(); }

  // `work` is in FLOP, or in bytes if `unit` is "GB/s".
  void compare(const std::string& name, const std::function<void()>& theirs, const std::function<void()>& ours,
               double work, const char* unit) {
    const at::NoGradGuard no_grad;
    use_own_kernels(false, on_gpu_);
    const double reference = time_of(device_, theirs);
    use_own_kernels(true, on_gpu_);
    print(name, reference, time_of(device_, ours), work, unit);
  }

  // Compares both passes of a function of leaves.
  void compare_passes(const std::string& name, const Tensors& leaves, const Operation& theirs, const Operation& ours,
                      double forward, double backward, const char* unit) {
    use_own_kernels(false, on_gpu_);
    const Times reference = times_of(device_, leaves, theirs);
    use_own_kernels(true, on_gpu_);
    const Times own = times_of(device_, leaves, ours);
    print(name, reference.forward, own.forward, forward, unit);
    print(name + ", backward", reference.backward, own.backward, backward, unit);
  }

 private:
  static void print(const std::string& name, double theirs, double ours, double work, const char* unit) {
    const bool flops = std::string(unit) == "TFLOP/s";
    std::printf("%-52s %9.3f %9.3f %8.2f %-7s %7.2f\n", name.c_str(), theirs * 1e3, ours * 1e3,
                work / ours * (flops ? 1e-12 : 1e-9), unit, theirs / ours);
    std::fflush(stdout);
  }

  device::Device& device_;
  const bool on_gpu_;
  const at::TensorOptions options_;
};

}  // namespace titan::bench
