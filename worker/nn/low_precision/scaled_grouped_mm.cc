#include "worker/nn/low_precision/scaled_grouped_mm.h"

#include <ATen/ops/_scaled_grouped_mm.h>

#include "worker/nn/low_precision/group_columns.h"

namespace titan::nn {
namespace {

constexpr int64_t kGroupMultiple = 16;

// A zero before running sums: where each begins.
at::Tensor begins_of(const at::Tensor& ends) { return at::constant_pad_nd(ends, {1, 0}); }

// Zeros between; they have the same bits in every type.
at::Tensor moved(const at::Tensor& values, const GroupsApart& to) {
  const at::Tensor bytes = values.view(at::kByte);
  at::Tensor wide = at::zeros({to.rows, values.size(1)}, bytes.options());
  return wide.index_copy_(0, to.places, bytes).view(values.scalar_type());
}

at::Tensor by_columns(const at::Tensor& x) { return x.t().contiguous().t(); }

at::Tensor grouped_product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                              const at::Tensor& b_scales, const at::Tensor& ends) {
  return at::_scaled_grouped_mm(a, b, a_scales.contiguous(), b_scales.contiguous(), ends, /*bias=*/{},
                                /*scale_result=*/{}, at::kBFloat16, /*use_fast_accum=*/true);
}

}  // namespace

GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows) {
  const int64_t n = rows.size(0);
  const at::Tensor group_of = group_of_rows(groups, n, rows);
  // One more count for the rows of no group, which come last.
  const at::Tensor counts =
      at::zeros({groups.count() + 1}, group_of.options()).scatter_add_(0, group_of, at::ones({n}, group_of.options()));
  const at::Tensor room = counts.add(kGroupMultiple - 1).div_(kGroupMultiple, "floor").mul_(kGroupMultiple);
  const at::Tensor begins = begins_of(counts.cumsum(0)), apart_begins = begins_of(room.cumsum(0));
  const at::Tensor moves = (apart_begins - begins).index_select(0, group_of);
  return {.places = at::arange(n, group_of.options()).add_(moves),
          .ends = apart_begins.narrow(0, 1, groups.count()).to(at::kInt),
          .rows = n + kGroupMultiple * (groups.count() + 1)};
}

bool fits_scaled_grouped_mm(int64_t in, int64_t out) { return in % kGroupMultiple == 0 && out % kGroupMultiple == 0; }

at::Tensor scaled_grouped_mm(const Operand& a, const Operand& b, const RowGroups& groups, at::ScalarType type) {
  if (a.values.is_meta()) return at::empty({a.values.size(0), b.values.size(1)}, a.values.options().dtype(type));
  const GroupsApart to = groups_apart(groups, a.values);
  const at::Tensor a_scales = at::ones({to.rows}, a.scales.options()).index_copy_(0, to.places, a.scales.flatten());
  const at::Tensor product = grouped_product_of(moved(a.values, to), b.values.contiguous().transpose(1, 2), a_scales,
                                                b.scales.squeeze(-1), to.ends);
  at::Tensor result = product.index_select(0, to.places).to(type);
  clear_rows_of_no_group(result, groups);
  return result;
}

at::Tensor scaled_grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups,
                                          at::ScalarType type) {
  const int64_t out = dy.values.size(1), in = x.values.size(1);
  if (x.values.is_meta()) return at::empty({groups.count(), out, in}, x.values.options().dtype(type));
  const GroupsApart to = groups_apart(groups, x.values);
  at::Tensor gradient = grouped_product_of(by_columns(moved(dy.values, to)).t(), by_columns(moved(x.values, to)),
                                           dy.scales.flatten(), x.scales.flatten(), to.ends);
  // A group without rows has nothing to sum.
  const at::Tensor none = at::diff(begins_of(to.ends)).eq(0);
  return gradient.masked_fill_(none.view({-1, 1, 1}), 0).to(type);
}

}  // namespace titan::nn
