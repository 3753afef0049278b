#include "worker/rank/nn/low_precision/recipes.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "worker/rank/nn/low_precision/makers.h"

namespace titan::nn {
namespace {

std::atomic<int> cuda_capability{0};

}  // namespace

void set_cuda_capability(int capability) { cuda_capability = capability; }

bool has_scaled_grouped_products(at::Device device) {
  return (device.is_cuda() || device.is_meta()) && cuda_capability >= 90 && cuda_capability < 110;
}

bool has_exact_rowwise_products(at::Device device) { return device.is_cuda() && cuda_capability == 90; }

bool has_low_precision_products(LowPrecision recipe, at::Device device) {
  // A dry run's tensors are of the devices that it speaks for.
  if (!device.is_cuda() && !device.is_meta()) return false;
  switch (recipe) {
    case LowPrecision::kFloat8Tensorwise:
    case LowPrecision::kFloat8Rowwise:
    case LowPrecision::kFloat8RowwiseGwHp:
      return cuda_capability >= 89;
    case LowPrecision::kMxfp8:
      return cuda_capability >= 100;
  }
  return false;
}

std::unique_ptr<ProductRecipe> make_low_precision_products(const LowPrecisionOptions& options) {
  switch (options.recipe) {
    case LowPrecision::kFloat8Tensorwise:
      return make_float8_tensorwise(options);
    case LowPrecision::kFloat8Rowwise:
    case LowPrecision::kFloat8RowwiseGwHp:
      return make_float8_rowwise(options);
    case LowPrecision::kMxfp8:
      return make_mxfp8(options);
  }
  TORCH_CHECK(false, "low precision: no such recipe");
}

}  // namespace titan::nn
