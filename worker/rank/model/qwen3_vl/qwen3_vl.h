#pragma once

// Qwen3-VL (arXiv 2511.21631): its vision tower, then Qwen 3's decoder with positions on three axes and DeepStack.
// Images only; videos are not supported.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/model/model.h"

namespace titan::model::qwen3_vl {

// Returns the language model of a spec of the family: what build_model() and make_mapper() call `text`.
models::ModelSpec language_model(models::ModelSpec spec);

// Builds the blocks of the tower, "visual.patch_embed" to "visual.merger", then those of the decoder. The entry blocks
// are the tower, the embedding and the layers of DeepStack. The first takes the context's kPatches; the context also
// has Qwen3VlImages as its extension, and what add_places() adds. A mesh splits the decoder as it does Qwen 3's; every
// tensor and context rank has the whole tower. Context ranks may encode different images (Images::padded_patches).
// InvalidArgument names the numbers that do not fit together.
absl::StatusOr<Model> build_model(const models::ModelSpec& text, const models::Qwen3VlSpec& spec,
                                  const BuildOptions& options);

// Makes the mapper to the names of transformers' Qwen3VLForConditionalGeneration, or its form with experts:
// "model.visual.", "model.language_model." and "lm_head.weight".
std::unique_ptr<checkpoint::HfMapper> make_mapper(const models::ModelSpec& text, const models::Qwen3VlSpec& spec);

}  // namespace titan::model::qwen3_vl
