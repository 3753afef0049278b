#include "worker/rank/nn/low_precision/float8.h"

#include <c10/util/Exception.h>

#include <tuple>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/low_precision/cpu_loops.h"
#include "worker/rank/nn/low_precision/float8_on_device.h"

namespace titan::nn {
namespace {

// No division by zero; torchao's value.
constexpr double kLeastAmax = 1e-12;

at::Tensor greater_magnitude(const std::tuple<at::Tensor, at::Tensor>& least_and_most) {
  const auto& [least, most] = least_and_most;
  return at::maximum(least.neg(), most).to(at::kFloat);
}

}  // namespace

double largest_of(at::ScalarType float8) {
  TORCH_CHECK(float8 == at::kFloat8_e4m3fn || float8 == at::kFloat8_e5m2, "float8: no products of ", float8);
  return float8 == at::kFloat8_e4m3fn ? 448 : 57344;
}

at::Tensor amax_of(const at::Tensor& x) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  if (at::Tensor amax = on_device::amax_of(x); amax.defined()) return amax;
  return greater_magnitude(at::aminmax(x));
}

at::Tensor amax_along(const at::Tensor& x, int64_t dim) {
  if (x.numel() == 0) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[at::maybe_wrap_dim(dim, x.dim())] = 1;
    return at::zeros(shape, x.options().dtype(at::kFloat));
  }
  return greater_magnitude(at::aminmax(x, dim, /*keepdim=*/true));
}

at::Tensor scale_from(const at::Tensor& amax, at::ScalarType float8, bool power_of_two) {
  // In fp64, so that every device and compiler divides alike.
  const at::Tensor divisor = amax.to(at::kDouble).clamp_min(kLeastAmax);
  const at::Tensor scale = at::div(at::scalar_tensor(largest_of(float8), at::kDouble), divisor).to(at::kFloat);
  return power_of_two ? scale.log2().floor_().exp2_() : scale;
}

at::Tensor to_float8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8) {
  const double most = largest_of(float8);
  if (scale.dim() == 0 && cpu_loops_take(x)) return encoded(x, scale, float8);
  // The cast itself makes NaN of what does not fit.
  return x.to(accumulate_type(x.scalar_type())).mul(scale).clamp_(-most, most).to(float8);
}

Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two) {
  if (amax.dim() == 0) {
    if (Operand all = on_device::quantised(x, amax, float8, power_of_two); all.quantised()) return all;
  }
  const at::Tensor scale = scale_from(amax, float8, power_of_two);
  return {.values = to_float8(x, scale, float8), .scales = scale.reciprocal(), .type = x.scalar_type()};
}

Operand quantised_rows(const at::Tensor& x) {
  if (Operand rows = on_device::quantised_rows(x); rows.quantised()) return rows;
  return quantised(x, amax_along(x, -1), at::kFloat8_e4m3fn, /*power_of_two=*/true);
}

Operand quantised_columns(const at::Tensor& x) {
  if (Operand columns = on_device::quantised_columns(x); columns.quantised()) return columns;
  const Operand columns = quantised(x, amax_along(x, -2), at::kFloat8_e4m3fn, /*power_of_two=*/true);
  return {columns.values.transpose(-2, -1), columns.scales.transpose(-2, -1), columns.type};
}

at::Tensor dequantised(const Operand& operand, at::ScalarType type) {
  return operand.values.to(type).mul_(operand.scales.to(type));
}

at::Tensor values_in(const Operand& operand, at::ScalarType type) {
  return type == at::kBFloat16 && table_takes(operand.values) ? decoded(operand.values) : operand.values.to(type);
}

at::Tensor rounded_along(const at::Tensor& x, int64_t dim) {
  if (cpu_loops_take(x)) {
    const int64_t all = x.size(dim);
    const at::Tensor scale = scale_from(amax_of_blocks(x, dim, all), at::kFloat8_e4m3fn, /*power_of_two=*/true);
    return rounded_by_blocks(x, dim, all, scale, scale.reciprocal());
  }
  const Operand operand = quantised(x, amax_along(x, dim), at::kFloat8_e4m3fn, /*power_of_two=*/true);
  return dequantised(operand, x.scalar_type());
}

}  // namespace titan::nn
