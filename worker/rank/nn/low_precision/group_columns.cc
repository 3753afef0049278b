#include "worker/rank/nn/low_precision/group_columns.h"

#include "worker/rank/nn/low_precision/float8.h"

namespace titan::nn {
namespace {

constexpr at::ScalarType kElement = at::kFloat8_e4m3fn;

// amax [groups, k] of each group's columns.
at::Tensor amax_by_group(const at::Tensor& x, const RowGroups& groups, const at::Tensor& group_of) {
  const at::Tensor wide = at::zeros({groups.count() + 1, x.size(1)}, x.options().dtype(at::kFloat));
  return wide.index_reduce(0, group_of, x.to(at::kFloat).abs_(), "amax").narrow(0, 0, groups.count());
}

// A row's scales are its group's; those of no group take the last one's.
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

}  // namespace titan::nn
