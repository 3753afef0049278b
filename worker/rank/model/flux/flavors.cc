#include "common/plan/models/families.h"
#include "common/plan/models/flux.h"

namespace titan::models {

// flux-dev and flux-schnell have the same numbers in torchtitan. FLUX.1-dev's guidance is an option of the spec.
std::vector<FluxSpec> flux_sizes() {
  return {
      {.flavor = "flux-dev", .dim = 3072, .n_heads = 24, .n_double_blocks = 19, .n_single_blocks = 38},
      {.flavor = "flux-schnell", .dim = 3072, .n_heads = 24, .n_double_blocks = 19, .n_single_blocks = 38},
      {.flavor = "flux-debug", .dim = 1536, .n_heads = 12, .n_double_blocks = 2, .n_single_blocks = 2},
      {.flavor = "flux-tiny-debug",  // Titan's own, for tests in seconds.
       .dim = 64,
       .n_heads = 2,
       .n_double_blocks = 2,
       .n_single_blocks = 2,
       .txt_width = 32,
       .vec_width = 32,
       .axes_dim = {8, 12, 12}},
      {.flavor = "flux-tiny",  // Titan's own: learns from small pictures in minutes, with the installation's encoders.
       .dim = 128,
       .n_heads = 4,
       .n_double_blocks = 2,
       .n_single_blocks = 4,
       .txt_width = 64,
       .vec_width = 64,
       .axes_dim = {8, 12, 12}},
  };
}

std::vector<ModelSpec> flux_flavors() {
  std::vector<ModelSpec> flavors;
  for (const FluxSpec& size : flux_sizes()) flavors.push_back(flux_model(size));
  return flavors;
}

}  // namespace titan::models
