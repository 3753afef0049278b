#pragma once

#include <memory>

#include "common/plan/models/model_spec.h"
#include "worker/rank/model/vlm/image_adapter.h"

namespace titan::model::qwen3_vl {

// Makes the adapter of Qwen3-VL's images. Its processor's numbers are those of preprocessor_config.json next to the
// tokenizer, or the released ones. The area of a resized image is limited by both the file and
// data.max_patches_per_image. A small image is enlarged to the processor's smallest area, which is halved until the
// rounded sides are within the limit. Positions on three axes are added to a microbatch.
std::unique_ptr<vlm::ImageAdapter> image_adapter(const models::ModelSpec& spec);

}  // namespace titan::model::qwen3_vl
