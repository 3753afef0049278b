#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/product_recipe.h"
#include "worker/rank/nn/row_groups.h"

// Rows of experts whose columns have scales of their own in each group: what a weight's gradient sums over are an
// expert's rows.
namespace titan::nn {

// int64 [n]: the group of each of n rows; as many as there are groups for a row of none. On `like`'s device.
at::Tensor group_of_rows(const RowGroups& groups, int64_t n, const at::Tensor& like);

// x [n, k] with powers of two as scales, e4m3: values [n, k], scales [groups, k]. Nothing waits for the device. Rows of
// no group have any values.
Operand quantised_group_columns(const at::Tensor& x, const RowGroups& groups);

// x [n, k] as that makes it, in x's type. Rows of no group are zeros.
at::Tensor rounded_group_columns(const at::Tensor& x, const RowGroups& groups);

}  // namespace titan::nn
