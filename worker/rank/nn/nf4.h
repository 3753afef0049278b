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
// A block of zeros has scale 0, and a block with a number that is not finite has a scale that is not finite. Throws if
// rows are not whole blocks or `packed` has another shape.
void nf4_pack(const at::Tensor& matrix, at::Tensor packed);
// Unpacks to [rows, in] in this type. Packing the result gives the same bytes if the type holds the scales exactly.
at::Tensor nf4_unpack(const at::Tensor& packed, at::ScalarType type);

// Returns the recipe for weights that are packed and not trained. Each product unpacks the weight to the activations'
// type. Weight gradients and products of experts throw.
const MatmulRecipe& nf4_matmul_recipe();

}  // namespace titan::nn
