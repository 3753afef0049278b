#pragma once

// Recipes of a layer's eight-bit products, as torchao 0.17 and torchtitan 0.2.2 define them (docs/low-precision.md),
// and which of them the device computes itself. The float8 recipes are defined in recipes.cc, and MXFP8 in mxfp8.cc.

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "worker/rank/nn/low_precision/mxfp8.h"
#include "worker/rank/nn/matmul_recipe.h"

namespace titan::nn {

enum class LowPrecisionRecipe {
  kFloat8Tensorwise,   // One scale per operand. Inputs and weights are e4m3, gradients e5m2.
  kFloat8Rowwise,      // A power of two per row of each product's operands, e4m3.
  kFloat8RowwiseGwHp,  // The same forward. Backward, the weight has one scale, and its gradient's operands are not
                       // quantised.
  kMxfp8,              // A power of two per 32 numbers along the summed dimension, e4m3.
};

// Raises amax, fp32 [...], in place to the greatest of all ranks that share the operand. Empty: this rank has all of
// it.
using AmaxOverRanks = std::function<void(at::Tensor& amax)>;

struct LowPrecisionOptions {
  LowPrecisionRecipe recipe = LowPrecisionRecipe::kFloat8Tensorwise;
  // Compute in high precision with quantised numbers. A device without such products always does.
  bool emulate = false;
  MxRounding rounding = MxRounding::kFloor;  // For kMxfp8: how a block's exponent is chosen.
  AmaxOverRanks input_over_ranks, gradient_over_ranks, weight_over_ranks;  // Only for tensorwise scales.
};

// Makes a recipe for dense layers and experts. It works on bf16, fp32 and fp64 (emulated), on every device and on meta
// tensors.
std::unique_ptr<MatmulRecipe> make_low_precision_recipe(const LowPrecisionOptions& options);

// Whether `device` computes such products itself (float8: SM89 and later; MX: SM100 and later). Otherwise they are
// emulated. Meta stands for this process's CUDA devices.
bool has_low_precision_matmul(LowPrecisionRecipe recipe, at::Device device);

// Sets the compute capability of the process's CUDA devices: 10 * major + minor (SM90: 90). Call it before the process
// computes. Until then no device has such products.
void set_cuda_capability(int capability);

// make_low_precision_recipe() chooses from these.
std::unique_ptr<MatmulRecipe> make_float8_tensorwise(const LowPrecisionOptions& options);
std::unique_ptr<MatmulRecipe> make_float8_rowwise(const LowPrecisionOptions& options);
std::unique_ptr<MatmulRecipe> make_mxfp8(const LowPrecisionOptions& options);

// Whether `device` multiplies experts' rows with one scale per row (SM90 to SM10x).
bool has_scaled_grouped_products(at::Device device);

// Whether `device` sums products with one scale per row exactly at about the same speed: SM90, where cuBLAS computes
// them (5 % slower than with inexact sums on an H100).
bool has_exact_rowwise_products(at::Device device);

}  // namespace titan::nn
