#pragma once

// The images that an estimate assumes in a job of a vision-language model: as many and as large as its limits allow.

#include <cstdint>

#include "common/plan/config/job_config.h"
#include "common/plan/models/vision_activations.h"
#include "common/plan/models/vision_spec.h"

namespace titan::memory {

struct RowImages {
  int64_t images = 0;      // The number in one row of a batch.
  models::PatchGrid grid;  // All images are of this shape.

  int64_t patches() const { return images * grid.patches(); }
};

// Returns the images of a row of training.local_batch_size rows. They are nearly square, and together they have at most
// the row's tokens, training.seq_len, because each square of data.spatial_merge_size^2 patches takes the place of one.
// A dry run has the same images, those of model::vlm::VlmObjective::example().
RowImages largest_images(const config::JobConfig& config);

// Returns the most images of one microbatch that a context rank encodes (data::balance_images). At least 1: a rank
// without images encodes a placeholder.
int64_t images_of_rank(const config::JobConfig& config, const RowImages& of_row);

// Returns the images of one microbatch on the rank of a job that encodes most of them.
models::VisionShape vision_shape(const config::JobConfig& config);

}  // namespace titan::memory
