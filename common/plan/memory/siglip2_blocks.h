#pragma once

// Estimates the memory of the blocks of SigLIP 2's vision tower and its projector.

#include "common/plan/config/job_config.h"
#include "common/plan/memory/tower.h"
#include "common/plan/models/vision_spec.h"

namespace titan::memory {

// Returns the memory of the embeddings, each layer and the projector for the images of vision_shape().
TowerMemory siglip2_memory(const config::JobConfig& config, const models::VisionSpec& spec);

}  // namespace titan::memory
