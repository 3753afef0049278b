#include "common/plan/memory/images.h"

#include <algorithm>
#include <cmath>

#include "common/plan/memory/blocks.h"

namespace titan::memory {

RowImages largest_images(const config::JobConfig& config) {
  const int64_t seq_len = config.training.seq_len;
  const int64_t allowed = std::max<int64_t>(config.data.max_images_per_batch / config.training.local_batch_size, 1);
  const int64_t most = std::max<int64_t>(std::min(config.data.max_patches_per_image, seq_len / allowed), 1);
  RowImages row;
  row.grid.height = static_cast<int64_t>(std::sqrt(static_cast<double>(most)));
  row.grid.width = most / row.grid.height;
  row.images = std::min(allowed, seq_len / row.grid.patches());
  return row;
}

int64_t images_of_rank(const config::JobConfig& config, const RowImages& of_row) {
  const int64_t images = of_row.images * microbatch_rows(config), ranks = config.parallelism.context_parallel_degree;
  return std::max<int64_t>(1, (images + ranks - 1) / ranks);
}

}  // namespace titan::memory
