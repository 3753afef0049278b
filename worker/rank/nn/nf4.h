#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/matmul_recipe.h"

// Weights in 4 bits: NF4 of QLoRA (arXiv 2305.14314, appendix E). A number is one of sixteen, the quantiles of a normal
// distribution scaled to [-1, 1] with 0 among them, times the largest magnitude of a block of 64 neighbours in a row.
// The sixteen are bitsandbytes', and so are the codes of a matrix with rows of a multiple of 64. Here each row is
// separate bytes, so that rows are cut, gathered and read like those of any other matrix:
//
//   in / 2 bytes of codes, the first of two neighbours in the high half, then in / 64 float32 scales.
namespace titan::nn {

// Packs a matrix [rows, in] of any floating type, on any device, to `packed`, uint8 [rows, models::nf4_row_bytes(in)].
// A block that is all zeros, or has a number that is not finite, shows this in its scale.
void nf4_pack(const at::Tensor& matrix, at::Tensor packed);
// Unpacks to [rows, in] in this type. Precision beyond 4 bits is lost. Packing the result gives the same bytes.
at::Tensor nf4_unpack(const at::Tensor& packed, at::ScalarType type);

// Multiplies by weights that are packed and not trained. Each product unpacks the weight, in the activations' type.
const MatmulRecipe& nf4_matmul_recipe();

}  // namespace titan::nn
