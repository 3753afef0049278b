#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/product_recipe.h"

// Numbers as eight-bit floats with a scale that follows them (dynamic scaling), computed as torchao's float8 training
// does: scale = largest value of the type / greatest magnitude of the numbers that share it. OCP's formats: e4m3fn (at
// most 448, no infinity) and e5m2 (at most 57,344). A NaN or an infinity makes all numbers of its scale NaN.
namespace titan::nn {

// The largest finite value of e4m3fn or e5m2.
double largest_of(at::ScalarType float8);

// The greatest magnitude of all of x, fp32 []; 0 where x is empty.
at::Tensor amax_of(const at::Tensor& x);
// The same along one dimension, which is kept with size 1: a row each with dim = -1, a column each with dim = -2.
at::Tensor amax_along(const at::Tensor& x, int64_t dim);

// What numbers are multiplied by: amax [...] fp32 to scales of the same shape, fp32. An amax below 1e-12 counts as
// that, so that zeros have a scale. With `power_of_two` rounded down to one: such scales round nothing.
at::Tensor scale_from(const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// x * scale, at least in fp32, as eight bits; what lies beyond the type's largest value becomes that.
at::Tensor to_float8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8);

// x with the scales of its amax, of a shape that broadcasts to x's. The operand's scales are what values are multiplied
// by to be numbers again, fp32.
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// x [..., n, k] as e4m3 with a power of two for each row: scales [..., n, 1]. And for each column, as a device
// multiplies them: turned, [..., k, n] with scales [..., k, 1].
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// The values alone in `type`, exactly.
at::Tensor values_in(const Operand& operand, at::ScalarType type);

// values * scales in `type`; exact in bf16 where the scales are powers of two and the exponents fit.
at::Tensor dequantised(const Operand& operand, at::ScalarType type);

// x as e4m3 makes it with a power of two for each row (dim = -1) or column (-2), in x's type, exactly.
at::Tensor rounded_along(const at::Tensor& x, int64_t dim);

}  // namespace titan::nn
