#include "worker/nn/row_groups.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <numeric>

#include "worker/nn/own_kernels.h"

namespace titan::nn {
namespace {

std::atomic<bool> at_once{true};

at::Tensor members_of(const at::Tensor& ends, const at::Tensor& x) {
  const at::Tensor group =
      at::bucketize(at::arange(x.size(0), ends.options()), ends, /*out_int32=*/false, /*right=*/true);
  return at::zeros({x.size(0), ends.size(0)}, x.options()).scatter_(1, group.unsqueeze(1), 1);
}

}  // namespace

void multiply_groups_at_once(bool yes) { at_once = yes; }

RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x, bool with_members) {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK(total == x.size(0), "grouped product: groups of ", total, " rows together, but ", x.size(0), " rows");
  RowGroups groups{std::move(rows), {}, {}};
  // A dry run has no numbers; Titan's kernels take the rows from the host.
  if (!at_once || x.scalar_type() != at::kBFloat16 || x.is_meta() || own_kernels_take(x)) return groups;
  std::vector<int64_t> ends(groups.rows.size());
  std::partial_sum(groups.rows.begin(), groups.rows.end(), ends.begin());
  groups.ends = at::tensor(ends, at::kInt).to(x.device(), /*non_blocking=*/true);
  if (with_members) groups.members = members_of(groups.ends, x);
  return groups;
}

}  // namespace titan::nn
