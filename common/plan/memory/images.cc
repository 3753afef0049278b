#include "common/plan/memory/images.h"

#include <algorithm>
#include <cmath>

#include "common/plan/memory/blocks.h"

namespace titan::memory {

RowImages largest_images(const config::JobConfig& config) {
  const int64_t seq_len = config.training.seq_len, merge = config.data.spatial_merge_size;
  const int64_t allowed = std::max<int64_t>(config.data.max_images_per_batch / config.training.local_batch_size, 1);
  const int64_t most = std::max<int64_t>(
      std::min(config.data.max_patches_per_image / (merge * merge), seq_len / allowed), 1);  // Tokens of an image.
  const auto height = static_cast<int64_t>(std::sqrt(static_cast<double>(most)));            // In tokens.
  const int64_t width = most / height;
  return {.images = std::min(allowed, seq_len / (height * width)),
          .grid = {.height = height * merge, .width = width * merge}};
}

int64_t images_of_rank(const config::JobConfig& config, const RowImages& of_row) {
  const int64_t images = of_row.images * microbatch_rows(config), ranks = config.parallelism.context_parallel_degree;
  return std::max<int64_t>(1, (images + ranks - 1) / ranks);
}

models::VisionShape vision_shape(const config::JobConfig& config) {
  const RowImages row = largest_images(config);
  return {.patches = images_of_rank(config, row) * row.grid.patches(),
          .patches_of_image = row.grid.patches(),
          .element_bytes = activation_shape(config).element_bytes};
}

}  // namespace titan::memory
