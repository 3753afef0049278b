#pragma once

// Microscaling (OCP MX 1.0): blocks of 32 numbers that share a power of two, computed as torchao does it. Elements are
// e4m3; the exponent is eight bits, biased by 127, 255 for a block with a NaN. Of a length that 32 does not divide the
// last block is shorter, as if zeros followed. The recipe that multiplies such numbers, make_mxfp8() in recipes.h, is
// defined in mxfp8.cc.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/product_recipe.h"

namespace titan::nn {

inline constexpr int64_t kMxBlock = 32;

// How a block's exponent follows from its greatest magnitude.
enum class MxRounding {
  kFloor,  // 2^floor(log2 amax) / 256, the standard's: the greatest numbers may saturate.
  kRceil,  // The least power of two that is at least amax / 448, cuBLAS's: nothing saturates.
  kCeil,   // 2^ceil(log2 amax) / 256.
  kEven,   // As kFloor, of amax rounded to e4m3's three bits of mantissa.
};

// Biased exponents, uint8, of blocks with these amax, fp32 of any shape.
at::Tensor mx_exponents(const at::Tensor& amax, MxRounding rounding);

// x [..., n] in blocks along its last dimension, n filled up with zeros to whole blocks: values [..., blocks * 32]
// e4m3, scales [..., blocks] e8m0.
Operand to_mx(const at::Tensor& x, MxRounding rounding);

// x as blocks along dimension `dim` make it, in x's type: exact in bf16 from 2^-126 on.
at::Tensor mx_rounded(const at::Tensor& x, int64_t dim, MxRounding rounding);

}  // namespace titan::nn
