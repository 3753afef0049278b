#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "worker/rank/kernels/choice.h"
#include "worker/rank/kernels/device_kernels.h"

// Layers check these before they call Titan's own kernels instead of LibTorch's operations.
namespace titan::nn {

// Whether Titan's CPU kernels accept x [..., n]: only bf16. fp32 and fp64 use LibTorch, because tests compare their
// results with other programs' to the last digits.
inline bool can_use_cpu_kernels(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.dim() > 0 && x.size(-1) > 0 &&
         kernels::chosen_level().has_value();
}

// Returns the kernels of x's [...] device if this part of a model uses them, else null.
inline const kernels::DeviceKernels* device_kernels_at(const at::Tensor& x, kernels::TrainingPart part) {
  const kernels::DeviceKernels* chosen = kernels::chosen_on_device(part);
  return chosen == nullptr || (chosen->on_host() ? !x.is_cpu() : !x.is_cuda()) ? nullptr : chosen;
}

// Returns the kernels for row operations on x [..., n], or null.
inline const kernels::DeviceKernels* device_kernels_for(const at::Tensor& x, kernels::TrainingPart part) {
  const bool takes = x.scalar_type() == at::kBFloat16 && x.dim() > 0 && x.size(-1) > 0;
  return takes ? device_kernels_at(x, part) : nullptr;
}

// Whether row operations on x [..., n] use Titan's kernels, on a CPU or a device.
inline bool can_use_row_kernels(const at::Tensor& x, kernels::TrainingPart part) {
  return can_use_cpu_kernels(x) || device_kernels_for(x, part) != nullptr;
}

// Allocates [sizes] for a kernel's result. On the CPU it calls the allocator directly, because at::empty() spends more
// time in LibTorch's dispatcher.
inline at::Tensor uninitialized(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty(sizes, options);
  return at::Tensor(at::detail::empty_cpu(sizes, options));
}

// Returns x [..., n] as [rows, n] with a contiguous last dimension: nearly always `x` itself or a view.
inline at::Tensor rows_of(const at::Tensor& x) {
  if (x.dim() == 2 && x.stride(1) == 1) return x;
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

// Asserts that a kernel did not decline, because layers pass only what it accepts.
inline void check_accepted(bool done) { TORCH_INTERNAL_ASSERT(done); }

// Runs a row operation of the model on x [..., n] that can_use_row_kernels() accepts: by `on_cpu` or by the device's
// kernels.
template <typename Args>
void compute_rows(const at::Tensor& x, bool (*on_cpu)(kernels::Level, const Args&), const Args& args) {
  const kernels::DeviceKernels* device = device_kernels_for(x, kernels::TrainingPart::kModel);
  check_accepted(device != nullptr ? device->run(args) : on_cpu(*kernels::chosen_level(), args));
}

}  // namespace titan::nn
