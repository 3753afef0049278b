#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "worker/rank/nn/low_precision/mx.h"
#include "worker/rank/nn/product_recipe.h"

// The recipes of products in eight bits, as torchao 0.17 and torchtitan 0.2.2 define them (docs/low-precision.md).
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

}  // namespace titan::nn
