#pragma once

// Frozen weights in 8 bits: each row of a matrix [out, in] is integers from -127 to 127 times one float32 scale, the
// row's largest magnitude / 127 (the weights of LLM.int8(), arXiv 2208.07339; activations stay as they are). A row is
// separate bytes, so that rows are cut, gathered and read like those of any other matrix: the integers, zeros up to a
// multiple of 4, the scale.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/matmul_recipe.h"

namespace titan::encoders {

// Returns the bytes of a packed row of `columns` numbers.
int64_t int8_row_bytes(int64_t columns);

// Packs a matrix [rows, in] of any floating type to uint8 [rows, int8_row_bytes(in)]. A row of zeros has scale 0, and a
// row with a number that is not finite has scale NaN.
at::Tensor int8_pack(const at::Tensor& matrix);

// Returns the recipe for products with packed weights, of inputs in fp32, bf16 or fp64. It multiplies by the integers,
// which all these types hold exactly, and scales the sums; so the only error is that of packing. Frozen encoders have
// no backward pass: its products throw.
const nn::MatmulRecipe& int8_matmul_recipe();

}  // namespace titan::encoders
