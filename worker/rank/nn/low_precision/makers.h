#pragma once

#include <memory>

#include "worker/rank/nn/low_precision/recipes.h"

// What make_low_precision_products() chooses from; a file each.
namespace titan::nn {

std::unique_ptr<ProductRecipe> make_float8_tensorwise(const LowPrecisionOptions& options);
std::unique_ptr<ProductRecipe> make_float8_rowwise(const LowPrecisionOptions& options);
std::unique_ptr<ProductRecipe> make_mxfp8(const LowPrecisionOptions& options);

// Whether `device` multiplies experts' rows with a scale a row (SM90, SM100).
bool has_scaled_grouped_products(at::Device device);

// Whether `device` is as fast when sums of products with a scale a row lose nothing on the way: SM90, where they are
// cuBLAS's (5 % slower than lossy ones on an H100).
bool has_exact_rowwise_products(at::Device device);

}  // namespace titan::nn
