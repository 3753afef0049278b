#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace titan::nn {

// Rows sorted by group: the first rows[0] belong to group 0, and so on. A group may have none. The tensor may have more
// rows than the groups together. These belong to no group, and a product leaves zeros in their places.
struct RowGroups {
  // Number of rows per group. Empty: only the device knows it, from `ends`.
  std::vector<int64_t> rows;
  // int32 [groups] on the device: end of each group, for products that compute all groups in one call. Undefined: one
  // call per group.
  at::Tensor ends;
  // [rows, groups], of the tensor's type: 1 if a row belongs to a group, else 0. Undefined if `ends` is, or if not
  // requested.
  at::Tensor members;
  // bool [rows, 1]: true for rows of no group. Undefined: `rows` determines them, or every row has a group.
  at::Tensor beyond;

  int64_t count() const { return ends.defined() ? ends.size(0) : static_cast<int64_t>(rows.size()); }
};

// Sets whether groups get ends from now on, as they do initially. Set false on a device without a kernel for them
// (device::Device::has_grouped_kernel). Call it before the process computes.
void set_use_grouped_gemm(bool yes);

// Returns groups of a tensor like x [sum of rows, ...]. `counts` is `rows` as int64 [groups] on x's device, if
// available. Nothing waits for the device. Throws if x has another number of rows.
RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x, bool with_members = false,
                     const at::Tensor& counts = {});

// Returns groups of counts[g] rows of x [n, ...], for counts int64 [groups] on x's device. Together they are n rows, or
// fewer if `expected`, the rows of an even load, is below n. Nothing waits for the device if one call computes all
// groups. Otherwise, on an accelerator, the host reads the counts. Without values (a dry run) the groups share
// `expected` rows evenly.
RowGroups group_counted_rows(const at::Tensor& counts, const at::Tensor& x, int64_t expected, bool with_members);

// Returns the rows of each group. Waits for the device if only it knows them.
std::vector<int64_t> rows_on_host(const RowGroups& groups);

// Zeros the rows of y [n, ...] that belong to no group.
void clear_rows_of_no_group(at::Tensor& y, const RowGroups& groups);

// Name in traces of the time in which the host waits for the rows of each expert.
inline constexpr const char* kReadsRows = "read the rows of each expert";
// Returns token counts, int64 [groups], on the host, within a trace scope of that name. Without values to read (a dry
// run on meta tensors) `rows` are dealt evenly.
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
