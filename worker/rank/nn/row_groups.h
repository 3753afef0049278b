#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace titan::nn {

// Rows sorted by group: the first rows[0] belong to group 0, and so on. A group may have none. The tensor may have more
// rows than the groups together: those belong to none, and a product leaves zeros in their places.
struct RowGroups {
  // Empty: only the device knows them, by `ends`.
  std::vector<int64_t> rows;
  // Where each group ends, int32 [groups] on the device, for products that take all groups in one call; undefined:
  // they are called one by one.
  at::Tensor ends;
  // [rows, groups] of the tensor's type: 1 where a row is of a group, else 0. Undefined where `ends` is, and when
  // nobody asked.
  at::Tensor members;
  // bool [rows, 1]: the rows of no group, where `rows` does not tell them. Undefined: it does, or there are none.
  at::Tensor beyond;

  int64_t count() const { return ends.defined() ? ends.size(0) : static_cast<int64_t>(rows.size()); }
};

// Whether groups get ends from now on, as they do at first: not on a device without a kernel for them
// (device::Device::has_grouped_kernel). One choice for a process, made before it computes.
void multiply_groups_at_once(bool yes);

// Groups of a tensor like `x` [sum of rows, ...]. `counts`: `rows` as int64 [groups] on x's device, where it has them.
// Nothing waits for the device.
RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x, bool with_members = false,
                     const at::Tensor& counts = {});

// Groups of counts[g] rows of x [n, ...], int64 [groups] on x's device: n rows together, or fewer where `expected`, the
// rows of an even load, is below n. Nothing waits for the device where one call takes all groups; else, on an
// accelerator, the host reads the counts. Without values (a dry run) the groups share `expected` rows evenly.
RowGroups group_counted_rows(const at::Tensor& counts, const at::Tensor& x, int64_t expected, bool with_members);

// The rows of each group. Waits for the device where only it knows them.
std::vector<int64_t> rows_on_host(const RowGroups& groups);

// Zeros in the rows of `y` [n, ...] that belong to no group.
void clear_rows_of_no_group(at::Tensor& y, const RowGroups& groups);

// How traces call a stretch in which the host waits for the rows of each expert.
inline constexpr const char* kReadsRows = "read the rows of each expert";
// Token counts on the host, in a scope of that name. Without values to read (a dry run on meta tensors) `rows` are
// dealt evenly.
std::vector<int64_t> counts_on_host(const at::Tensor& counts, int64_t rows);

// Calls visit(group, first row, rows) for every group, empty ones included.
template <typename Visit>
void for_each_group(const std::vector<int64_t>& rows, Visit&& visit) {
  int64_t first = 0;
  for (size_t group = 0; group < rows.size(); ++group) {
    visit(static_cast<int64_t>(group), first, rows[group]);
    first += rows[group];
  }
}

}  // namespace titan::nn
