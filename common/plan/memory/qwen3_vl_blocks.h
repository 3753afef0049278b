#pragma once

// Estimates the memory of the blocks of Qwen3-VL's vision tower.

#include "common/plan/config/job_config.h"
#include "common/plan/memory/tower.h"
#include "common/plan/models/qwen3_vl_vision.h"

namespace titan::memory {

// Returns the memory of the embeddings, each layer and the last merger for the images of vision_shape().
TowerMemory qwen3_vl_memory(const config::JobConfig& config, const models::Qwen3VlVisionSpec& spec);

}  // namespace titan::memory
