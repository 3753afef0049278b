#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/product_recipe.h"

// Weights in 4 bits: NF4 of QLoRA (arXiv 2305.14314, appendix E). Sixteen numbers, the quantiles of a normal
// distribution scaled to [-1, 1] with 0 among them, times the largest magnitude of a block of 64 neighbours in a row.
// The numbers are bitsandbytes' and so are the codes of a matrix whose rows are multiples of 64; a row here is bytes by
// itself, so that rows are cut, gathered and read like those of any other matrix:
//
//   in / 2 bytes of codes, the first of two neighbours in the high half, then in / 64 float32 scales.
namespace titan::nn {

// Matrix [rows, in] of any floating type, on any device, to bytes [rows, models::nf4_row_bytes(in)] in `packed`. In the
// columns of a block that is all zeros, or has a number that is not finite, the scale says so.
void nf4_pack(const at::Tensor& matrix, at::Tensor packed);
// And back: [rows, in] in this type. What does not survive in 4 bits is gone; packing the result gives the same bytes.
at::Tensor nf4_unpack(const at::Tensor& packed, at::ScalarType type);

// Products with weights that are packed and not trained: each unpacks the weight for itself, in the activations' type.
const ProductRecipe& nf4_products();

}  // namespace titan::nn
