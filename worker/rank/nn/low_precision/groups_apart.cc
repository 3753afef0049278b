#include "worker/rank/nn/low_precision/groups_apart.h"

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/float8_on_device.h"
#include "worker/rank/nn/low_precision/group_columns.h"

namespace titan::nn {
namespace {

int64_t up(int64_t rows) { return (rows + kGroupMultiple - 1) / kGroupMultiple * kGroupMultiple; }

// A zero before running sums: where each begins.
at::Tensor begins_of(const at::Tensor& ends) { return at::constant_pad_nd(ends, {1, 0}); }

// Zeros between; they have the same bits in every type.
at::Tensor moved(const at::Tensor& values, const GroupsApart& to) {
  const at::Tensor bytes = values.view(at::kByte);
  at::Tensor wide = at::zeros({to.rows, values.size(1)}, bytes.options());
  return wide.index_copy_(0, to.places.to(at::kLong), bytes).view(values.scalar_type());
}

}  // namespace

GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows) {
  const int64_t n = rows.size(0), room_for_all = up(n) + kGroupMultiple * (groups.count() + 1);
  if (GroupsApart found = on_device::groups_apart(groups, rows, room_for_all); found.places.defined()) return found;
  const at::Tensor group_of = group_of_rows(groups, n, rows);
  // One more count for the rows of no group, which come last.
  const at::Tensor counts =
      at::zeros({groups.count() + 1}, group_of.options()).scatter_add_(0, group_of, at::ones({n}, group_of.options()));
  const at::Tensor room = counts.add(kGroupMultiple - 1).div_(kGroupMultiple, "floor").mul_(kGroupMultiple);
  const at::Tensor begins = begins_of(counts.cumsum(0)), apart_begins = begins_of(room.cumsum(0));
  const at::Tensor moves = (apart_begins - begins).index_select(0, group_of);
  return {.places = at::arange(n, group_of.options()).add_(moves),
          .ends = apart_begins.narrow(0, 1, groups.count()).to(at::kInt),
          .rows = room_for_all};
}

Operand rows_apart(const at::Tensor& x, const GroupsApart& to) {
  if (Operand apart = on_device::rows_apart(x, to); apart.quantised()) return apart;
  const Operand rows = quantised_rows(x);
  const at::Tensor scales = at::ones({to.rows}, rows.scales.options());
  return {.values = moved(rows.values, to),
          .scales = scales.index_copy(0, to.places.to(at::kLong), rows.scales.flatten()),
          .type = rows.type};
}

Operand columns_apart(const at::Tensor& x, const GroupsApart& to, const RowGroups& groups) {
  if (Operand apart = on_device::columns_apart(x, to, groups.count()); apart.quantised()) return apart;
  const Operand columns = quantised_group_columns(x, groups);
  return {.values = moved(columns.values, to).t().contiguous(), .scales = columns.scales, .type = columns.type};
}

}  // namespace titan::nn
