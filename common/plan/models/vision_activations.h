#pragma once

// Estimates how many bytes of activations each block of a vision tower keeps for the backward pass.

#include <cstdint>
#include <vector>

#include "common/plan/models/activations.h"
#include "common/plan/models/qwen3_vl_vision.h"
#include "common/plan/models/vision_spec.h"

namespace titan::models {

// The images that a rank encodes for one microbatch.
struct VisionShape {
  int64_t patches = 0;           // Patches of all images.
  int64_t patches_of_image = 0;  // Patches of one, which determine attention's FLOPs.
  int64_t element_bytes = 2;     // Bytes of the type in which layers compute.
};

// Return an estimate for each block of the engine: embeddings, layers, and SigLIP 2's projector or Qwen3-VL's last
// merger. Tensor ranks hold all of it. The pixels, which are fp32, exist anyway, so the embeddings keep only a copy of
// another type.
std::vector<BlockActivations> block_activations(const VisionSpec& spec, const VisionShape& shape);
std::vector<BlockActivations> block_activations(const Qwen3VlVisionSpec& spec, const VisionShape& shape);

}  // namespace titan::models
