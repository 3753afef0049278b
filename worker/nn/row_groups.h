#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace titan::nn {

// Rows sorted by group: the first rows[0] belong to group 0, and so on. A group may have none.
struct RowGroups {
  std::vector<int64_t> rows;
  // Where each group ends, int32 [groups] on the device, for products that take all groups in one call; undefined:
  // they are called one by one.
  at::Tensor ends;
  // [sum of rows, groups] of the tensor's type: 1 where a row is of a group, else 0. Undefined where `ends` is, and
  // when nobody asked.
  at::Tensor members;
};

// Whether groups get ends from now on, as they do at first: not on a device without a kernel for them
// (comm::Device::has_grouped_kernel). One choice for a process, made before it computes.
void multiply_groups_at_once(bool yes);

// Groups of a tensor like `x` [sum of rows, ...]. Nothing waits for the device.
RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x, bool with_members = false);

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
