#include "worker/rank/nn/low_precision/float8.h"

#include <c10/util/Exception.h>

#include <tuple>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/low_precision/float8_kernels.h"

namespace titan::nn {
namespace {

// Avoids division by zero. This is torchao's value.
constexpr double kMinAmax = 1e-12;

at::Tensor greater_magnitude(const std::tuple<at::Tensor, at::Tensor>& least_and_most) {
  const auto& [least, most] = least_and_most;
  return at::maximum(least.neg(), most).to(at::kFloat);
}

}  // namespace

double largest_of(at::ScalarType float8) {
  TORCH_CHECK(float8 == at::kFloat8_e4m3fn || float8 == at::kFloat8_e5m2, "float8: unsupported type ", float8);
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
  // fp64 makes every device and compiler divide alike.
  const at::Tensor divisor = amax.to(at::kDouble).clamp_min(kMinAmax);
  const at::Tensor scale = at::div(at::scalar_tensor(largest_of(float8), at::kDouble), divisor).to(at::kFloat);
  return power_of_two ? scale.log2().floor_().exp2_() : scale;
}

at::Tensor to_float8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8) {
  const double most = largest_of(float8);
  if (scale.dim() == 0 && cpu_loops_take(x)) return encoded(x, scale, float8);
  // Without the clamp the cast would turn numbers that do not fit into NaN.
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

namespace {

constexpr at::ScalarType kElement = at::kFloat8_e4m3fn;

// Returns amax [groups, k] of each group's columns.
at::Tensor amax_by_group(const at::Tensor& x, const RowGroups& groups, const at::Tensor& group_of) {
  const at::Tensor wide = at::zeros({groups.count() + 1, x.size(1)}, x.options().dtype(at::kFloat));
  return wide.index_reduce(0, group_of, x.to(at::kFloat).abs_(), "amax").narrow(0, 0, groups.count());
}

// Returns the scales of each row's group. Rows of no group get the last group's.
at::Tensor of_rows(const at::Tensor& scales, const at::Tensor& group_of) {
  return scales.index_select(0, group_of.clamp_max(scales.size(0) - 1));
}

}  // namespace

at::Tensor group_of_rows(const RowGroups& groups, int64_t n, const at::Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  if (like.is_meta()) return at::empty({n}, options);
  at::Tensor ends = groups.ends;
  if (!ends.defined()) ends = at::tensor(groups.rows, at::kLong).cumsum(0).to(like.device(), /*non_blocking=*/true);
  return at::bucketize(at::arange(n, options), ends, /*out_int32=*/false, /*right=*/true);
}

Operand quantised_group_columns(const at::Tensor& x, const RowGroups& groups) {
  const at::Tensor group_of = group_of_rows(groups, x.size(0), x);
  const at::Tensor scale = scale_from(amax_by_group(x, groups, group_of), kElement, /*power_of_two=*/true);
  return {.values = to_float8(x, of_rows(scale, group_of), kElement),
          .scales = scale.reciprocal(),
          .type = x.scalar_type()};
}

at::Tensor rounded_group_columns(const at::Tensor& x, const RowGroups& groups) {
  if (groups.rows.empty()) {
    const Operand columns = quantised_group_columns(x, groups);
    const at::Tensor scales = of_rows(columns.scales, group_of_rows(groups, x.size(0), x));
    at::Tensor rounded = dequantised({.values = columns.values, .scales = scales}, x.scalar_type());
    clear_rows_of_no_group(rounded, groups);
    return rounded;
  }
  at::Tensor rounded = at::empty_like(x);
  for_each_group(groups.rows, [&](int64_t /*group*/, int64_t first, int64_t count) {
    const at::Tensor part = x.narrow(0, first, count);
    rounded.narrow(0, first, count).copy_(rounded_along(part, 0));
  });
  clear_rows_of_no_group(rounded, groups);
  return rounded;
}

namespace {

int64_t up(int64_t rows) { return (rows + kGroupMultiple - 1) / kGroupMultiple * kGroupMultiple; }

// Prepends a zero to running sums, which gives the start of each group.
at::Tensor begins_of(const at::Tensor& ends) { return at::constant_pad_nd(ends, {1, 0}); }

// Moves rows to their positions, with zeros between groups. Zeros have the same bits in every type.
at::Tensor moved(const at::Tensor& values, const PaddedGroups& to) {
  const at::Tensor bytes = values.view(at::kByte);
  at::Tensor wide = at::zeros({to.rows, values.size(1)}, bytes.options());
  return wide.index_copy_(0, to.places.to(at::kLong), bytes).view(values.scalar_type());
}

}  // namespace

PaddedGroups pad_groups(const RowGroups& groups, const at::Tensor& rows) {
  const int64_t n = rows.size(0), padded_size = up(n) + kGroupMultiple * (groups.count() + 1);
  if (PaddedGroups found = on_device::pad_groups(groups, rows, padded_size); found.places.defined()) return found;
  const at::Tensor group_of = group_of_rows(groups, n, rows);
  // The additional count is for the rows of no group, which come last.
  const at::Tensor counts =
      at::zeros({groups.count() + 1}, group_of.options()).scatter_add_(0, group_of, at::ones({n}, group_of.options()));
  const at::Tensor padded_counts = counts.add(kGroupMultiple - 1).div_(kGroupMultiple, "floor").mul_(kGroupMultiple);
  const at::Tensor begins = begins_of(counts.cumsum(0)), apart_begins = begins_of(padded_counts.cumsum(0));
  const at::Tensor moves = (apart_begins - begins).index_select(0, group_of);
  return {.places = at::arange(n, group_of.options()).add_(moves),
          .ends = apart_begins.narrow(0, 1, groups.count()).to(at::kInt),
          .rows = padded_size};
}

Operand quantise_padded_rows(const at::Tensor& x, const PaddedGroups& to) {
  if (Operand apart = on_device::quantise_padded_rows(x, to); apart.quantised()) return apart;
  const Operand rows = quantised_rows(x);
  const at::Tensor scales = at::ones({to.rows}, rows.scales.options());
  return {.values = moved(rows.values, to),
          .scales = scales.index_copy(0, to.places.to(at::kLong), rows.scales.flatten()),
          .type = rows.type};
}

Operand quantise_padded_columns(const at::Tensor& x, const PaddedGroups& to, const RowGroups& groups) {
  if (Operand apart = on_device::quantise_padded_columns(x, to, groups.count()); apart.quantised()) return apart;
  const Operand columns = quantised_group_columns(x, groups);
  return {.values = moved(columns.values, to).t().contiguous(), .scales = columns.scales, .type = columns.type};
}

}  // namespace titan::nn
