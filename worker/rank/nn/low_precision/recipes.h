#pragma once

// The recipes of a layer's products in eight bits, as torchao 0.17 and torchtitan 0.2.2 define them
// (docs/low-precision.md), and which of them the device computes itself. The float8 recipes are defined here, MXFP8 in
// mxfp8.cc.

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "worker/rank/nn/low_precision/mxfp8.h"
#include "worker/rank/nn/product_recipe.h"

namespace titan::nn {

enum class LowPrecision {
  kFloat8Tensorwise,   // One scale for all of an operand; inputs and weights e4m3, gradients e5m2.
  kFloat8Rowwise,      // A power of two for each row of each product's operands, e4m3.
  kFloat8RowwiseGwHp,  // The same forward; one scale for the weight backward, and its gradient is not quantised.
  kMxfp8,              // A power of two for each 32 numbers along what is summed over, e4m3.
};

// Makes an amax [any shape, fp32] the greatest of all ranks that share the operand, in place. Empty: this rank has all
// of it.
using AmaxOverRanks = std::function<void(at::Tensor& amax)>;

struct LowPrecisionOptions {
  LowPrecision recipe = LowPrecision::kFloat8Tensorwise;
  bool emulate = false;  // Compute in high precision with quantised numbers; forced where the device has no such
                         // products.
  MxRounding rounding = MxRounding::kFloor;                                // kMxfp8: how a block's exponent is chosen.
  AmaxOverRanks input_over_ranks, gradient_over_ranks, weight_over_ranks;  // Tensorwise only.
};

// Of dense layers and of experts; works on bf16, fp32 and fp64 (emulated), on every device and without memory.
std::unique_ptr<ProductRecipe> make_low_precision_products(const LowPrecisionOptions& options);

// Whether `device` computes such products itself (SM89 for float8, SM100 for MX); else they are emulated.
bool has_low_precision_products(LowPrecision recipe, at::Device device);

// Tells it what the process's CUDA devices are: 10 * major + minor of their compute capability (SM90: 90). One choice
// for a process, made before it computes; before it, none has such products.
void set_cuda_capability(int capability);

// What make_low_precision_products() chooses from.
std::unique_ptr<ProductRecipe> make_float8_tensorwise(const LowPrecisionOptions& options);
std::unique_ptr<ProductRecipe> make_float8_rowwise(const LowPrecisionOptions& options);
std::unique_ptr<ProductRecipe> make_mxfp8(const LowPrecisionOptions& options);

// Whether `device` multiplies experts' rows with a scale a row (SM90, SM100).
bool has_scaled_grouped_products(at::Device device);

// Whether `device` is as fast when sums of products with a scale a row lose nothing on the way: SM90, where they are
// cuBLAS's (5 % slower than lossy ones on an H100).
bool has_exact_rowwise_products(at::Device device);

}  // namespace titan::nn
