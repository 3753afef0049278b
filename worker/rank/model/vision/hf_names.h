#pragma once

#include <memory>

#include "common/plan/models/vision_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/model/hf_names.h"

namespace titan::model {

// Returns the names of a SigLIP 2 tower in Hugging Face weights (Siglip2VisionModel, or Siglip2Model with its text
// tower), with {} for the layer: "encoder.layers.{}.mlp.fc1.weight" is "vision_model.encoder.layers.{}.mlp.fc1.weight".
// Those folders have no projector. It is stored under its own name, and a folder may lack it.
HfNames vision_hf_names(const models::VisionSpec& spec);

// Returns the config.json of a Siglip2VisionModel with these numbers (hf_config::read_vision is the inverse).
nlohmann::json vision_hf_config(const models::VisionSpec& spec);

// Makes the mapper of a tower. It knows, and ignores, the pooling head, the text tower and the logits' scale and bias
// of released folders.
std::unique_ptr<checkpoint::HfMapper> make_vision_hf_mapper(const models::VisionSpec& spec);

}  // namespace titan::model
