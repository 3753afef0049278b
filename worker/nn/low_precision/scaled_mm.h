#pragma once

#include <ATen/ATen.h>

#include "worker/nn/product_recipe.h"
#include "worker/nn/row_groups.h"

// Products of eight-bit matrices by the device's own instructions (LibTorch's _scaled_mm and _scaled_grouped_mm). Both
// operands lie with what is summed over in their last dimension.
namespace titan::nn {

// (a * its scales) (b * its scales)^T of a [m, k] and b [n, k]: [m, n] in `type`. Scales are [], or one a row, [m, 1]
// and [n, 1]. k and n are filled up with zeros to multiples of 16. `fast`: sums may lose low bits on the way, as the
// tensor cores of SM89 and SM90 do unless told otherwise.
at::Tensor scaled_mm(const Operand& a, const Operand& b, bool fast, at::ScalarType type);

// The same of blocks of 32 with an exponent each (worker/nn/low_precision/mx.h), k filled up to whole blocks.
at::Tensor mx_scaled_mm(const Operand& a, const Operand& b, at::ScalarType type);

}  // namespace titan::nn
