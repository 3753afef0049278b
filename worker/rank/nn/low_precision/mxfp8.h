#pragma once

// Microscaling (OCP MX 1.0): blocks of 32 numbers share a power of two, computed as in torchao. Elements are e4m3. The
// exponent has eight bits, biased by 127, and is 255 for a block with a NaN. If 32 does not divide a length, the last
// block is shorter, as if zeros followed. The recipe that multiplies such numbers, make_mxfp8() in recipes.h, is
// defined in mxfp8.cc.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/matmul_recipe.h"

namespace titan::nn {

inline constexpr int64_t kMxBlock = 32;

// How a block's exponent follows from its greatest magnitude.
enum class MxRounding {
  kFloor,  // 2^floor(log2 amax) / 256, the standard's. The greatest numbers may saturate.
  kRceil,  // The smallest power of two that is at least amax / 448, cuBLAS's. Nothing saturates.
  kCeil,   // 2^ceil(log2 amax) / 256.
  kEven,   // Like kFloor, for amax rounded to e4m3's three bits of mantissa.
};

// Returns biased exponents, uint8 [...], of blocks with these amax, fp32 [...].
at::Tensor mx_exponents(const at::Tensor& amax, MxRounding rounding);

// Quantises x [..., n] in blocks along its last dimension, padded with zeros to whole blocks: values e4m3 [..., blocks
// * 32], scales e8m0 [..., blocks].
Operand to_mx(const at::Tensor& x, MxRounding rounding);

// Rounds x [...] in blocks along dimension `dim`, in x's type and shape. Exact in bf16 from 2^-126 up.
at::Tensor mx_rounded(const at::Tensor& x, int64_t dim, MxRounding rounding);

}  // namespace titan::nn
