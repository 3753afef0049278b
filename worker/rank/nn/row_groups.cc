#include "worker/rank/nn/row_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "worker/rank/device/device_graphs.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

std::atomic<bool> at_once{true};

// Whether LibTorch's products compute all groups in one call. A dry run has no numbers, and Titan's kernels need the
// rows on the host.
bool in_one_call(const at::Tensor& x) {
  return at_once && x.scalar_type() == at::kBFloat16 && !x.is_meta() && !can_use_cpu_kernels(x);
}

at::Tensor members_of(const at::Tensor& ends, const at::Tensor& x) {
  const at::Tensor group =
      at::bucketize(at::arange(x.size(0), ends.options()), ends, /*out_int32=*/false, /*right=*/true);
  // The additional column is for the rows of no group.
  const at::Tensor wide = at::zeros({x.size(0), ends.size(0) + 1}, x.options()).scatter_(1, group.unsqueeze(1), 1);
  return wide.narrow(1, 0, ends.size(0));
}

int64_t total(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

}  // namespace

void set_use_grouped_gemm(bool yes) { at_once = yes; }

RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x, bool with_members, const at::Tensor& counts) {
  TORCH_CHECK(total(rows) == x.size(0), "grouped product: groups of ", total(rows),
              " rows in total, but the tensor has ", x.size(0), " rows");
  RowGroups groups{.rows = std::move(rows)};
  if (!in_one_call(x)) return groups;
  const at::Tensor there =
      counts.defined() ? counts : device::copy_async(at::tensor(groups.rows, at::kLong), x.device());
  groups.ends = there.cumsum(0, at::kInt);
  if (with_members) groups.members = members_of(groups.ends, x);
  return groups;
}

RowGroups group_counted_rows(const at::Tensor& counts, const at::Tensor& x, int64_t expected, bool with_members) {
  const bool padded = expected < x.size(0);
  if (!in_one_call(x)) {
    RowGroups groups{.rows = counts_on_host(counts, expected)};
    const int64_t rows = total(groups.rows);
    TORCH_CHECK(padded ? rows <= x.size(0) : rows == x.size(0), "grouped product: groups of ", rows,
                " rows in total, but the tensor has ", x.size(0), " rows");
    return groups;
  }
  RowGroups groups{.ends = counts.cumsum(0).to(at::kInt)};
  if (with_members) groups.members = members_of(groups.ends, x);
  if (padded) {
    const at::Tensor places = at::arange(x.size(0), groups.ends.options());
    groups.beyond = places.ge(groups.ends.select(0, groups.count() - 1)).unsqueeze(1);
  }
  return groups;
}

std::vector<int64_t> rows_on_host(const RowGroups& groups) {
  if (!groups.rows.empty()) return groups.rows;
  std::vector<int64_t> rows = counts_on_host(groups.ends.to(at::kLong), 0);
  std::adjacent_difference(rows.begin(), rows.end(), rows.begin());
  return rows;
}

void clear_rows_of_no_group(at::Tensor& y, const RowGroups& groups) {
  if (groups.beyond.defined()) {
    y.masked_fill_(groups.beyond, 0);
  } else if (const int64_t rows = total(groups.rows); !groups.rows.empty() && rows < y.size(0)) {
    y.narrow(0, rows, y.size(0) - rows).zero_();
  }
}

std::vector<int64_t> counts_on_host(const at::Tensor& counts, int64_t rows) {
  const device::TraceScope scope([] { return kReadsRows; });
  device::check_not_capturing("the rows of each expert");
  const int64_t groups = counts.numel();
  std::vector<int64_t> result(groups);
  if (counts.is_meta()) {
    for (int64_t i = 0; i < groups; ++i) result[i] = rows * (i + 1) / groups - rows * i / groups;
  } else {
    const device::AllowHostWaitGuard wait;
    const at::Tensor local = counts.to(at::kCPU).contiguous();
    std::copy_n(local.const_data_ptr<int64_t>(), groups, result.begin());
  }
  return result;
}

}  // namespace titan::nn
