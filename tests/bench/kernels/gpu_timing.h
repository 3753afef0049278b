#pragma once

// Timing of one operation, for the programs that run on machines with GPUs.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "worker/rank/device/device.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/kernels/device_kernels.h"

namespace titan::bench {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

inline void use_own_kernels(bool own, bool on_gpu) {
  constexpr kernels::DeviceParts kAll{.model = true, .loss = true, .optimizer = true};
  if (on_gpu) return kernels::choose_on_device(own ? kernels::cuda_kernels() : nullptr, kAll);
  kernels::choose(own ? "auto" : "reference");
}

// Returns the seconds of one run of `body`: the median of several measurements, each with as many runs as take a few
// milliseconds.
inline double time_of(device::Device& device, const std::function<void()>& body) {
  const auto seconds = [&](int runs) {
    device.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) body();
    device.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / runs;
  };
  seconds(3);  // Warms the caches, including the allocator's.
  const int runs = std::clamp(static_cast<int>(5e-3 / seconds(3)), 1, 200);
  std::vector<double> times(7);
  for (double& one : times) one = seconds(runs);
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

struct Times {
  double forward, backward;
};
inline Times times_of(device::Device& device, const Tensors& leaves, const Operation& operation) {
  const at::Tensor y = operation(leaves), dy = at::ones_like(y);
  return {time_of(device, [&] { operation(leaves); }),
          time_of(device, [&] { torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true); })};
}

}  // namespace titan::bench
