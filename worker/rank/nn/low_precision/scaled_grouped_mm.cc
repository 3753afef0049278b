#include "worker/rank/nn/low_precision/scaled_grouped_mm.h"

#include <ATen/ops/_scaled_grouped_mm.h>

#include "worker/rank/nn/low_precision/groups_apart.h"

namespace titan::nn {
namespace {

at::Tensor grouped_product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                              const at::Tensor& b_scales, const at::Tensor& ends) {
  return at::_scaled_grouped_mm(a, b, a_scales.contiguous(), b_scales.contiguous(), ends, /*bias=*/{},
                                /*scale_result=*/{}, at::kBFloat16, /*use_fast_accum=*/true);
}

}  // namespace

bool fits_scaled_grouped_mm(int64_t in, int64_t out) { return in % kGroupMultiple == 0 && out % kGroupMultiple == 0; }

at::Tensor scaled_grouped_mm(const at::Tensor& a, const Operand& b, const RowGroups& groups) {
  if (a.is_meta()) return at::empty({a.size(0), b.values.size(1)}, a.options());
  const GroupsApart to = groups_apart(groups, a);
  const Operand rows = rows_apart(a, to);
  const at::Tensor product = grouped_product_of(rows.values, b.values.contiguous().transpose(1, 2), rows.scales,
                                                b.scales.squeeze(-1), to.ends);
  at::Tensor result = product.index_select(0, to.places).to(a.scalar_type());
  clear_rows_of_no_group(result, groups);
  return result;
}

at::Tensor scaled_grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups) {
  if (x.is_meta()) return at::empty({groups.count(), dy.size(1), x.size(1)}, x.options());
  const GroupsApart to = groups_apart(groups, x);
  const Operand left = columns_apart(dy, to, groups), right = columns_apart(x, to, groups);
  at::Tensor gradient =
      grouped_product_of(left.values, right.values.t(), left.scales.flatten(), right.scales.flatten(), to.ends);
  // A group without rows has nothing to sum.
  const at::Tensor none = at::diff(at::constant_pad_nd(to.ends, {1, 0})).eq(0);
  return gradient.masked_fill_(none.view({-1, 1, 1}), 0).to(x.scalar_type());
}

}  // namespace titan::nn
