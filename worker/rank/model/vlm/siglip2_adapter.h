#pragma once

#include <memory>

#include "common/plan/models/vision_spec.h"
#include "worker/rank/model/vlm/image_adapter.h"

namespace titan::model::vlm {

// Makes the adapter of a SigLIP 2 tower: images are resized and cut as torchtitan's experiment does, and every patch is
// a token.
std::unique_ptr<ImageAdapter> siglip2_adapter(const models::VisionSpec& vision);

}  // namespace titan::model::vlm
