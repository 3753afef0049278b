#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "worker/kernels/choice.h"

// What all layers ask before they call Titan's own CPU kernels instead of LibTorch's operations.
namespace titan::nn {

// Only bf16: fp32 and fp64 results are compared with others' to their last digits.
inline bool own_kernels_take(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.dim() > 0 && x.size(-1) > 0 &&
         kernels::chosen_level().has_value();
}

// Memory for a kernel's result, straight from the allocator: at::empty() spends more on its way through LibTorch's
// dispatcher.
inline at::Tensor uninitialized(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::Tensor(at::detail::empty_cpu(sizes, options));
}

// [rows, last dimension], neighbours in it side by side; nearly always `x` itself or a view.
inline at::Tensor rows_of(const at::Tensor& x) {
  if (x.dim() == 2 && x.stride(1) == 1) return x;
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

// A kernel declines nothing that the layers let through.
inline void took(bool done) { TORCH_INTERNAL_ASSERT(done); }

}  // namespace titan::nn
