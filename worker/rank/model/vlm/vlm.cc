#include <iterator>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/vision/image_tokens.h"
#include "worker/rank/model/vision/images.h"
#include "worker/rank/model/vision/siglip2.h"
#include "worker/rank/model/vlm/inputs.h"
#include "worker/rank/model/vlm/objective.h"
#include "worker/rank/model/vlm/siglip2_adapter.h"

// A vision-language model, like torchtitan's Llama3Siglip2: a vision tower, whose results take the places of the image
// tokens in the embedded text, and a decoder.
namespace titan::model::vlm {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  MultimodalEmbedding* embedding = nullptr;
  TITAN_ASSIGN_OR_RETURN(Model model,
                         build_decoder(spec, options, common_inits(spec), [&](const auto& sizes, nn::Init init) {
                           auto made = std::make_unique<MultimodalEmbedding>(sizes, init);
                           embedding = made.get();
                           return made;
                         }));
  TITAN_ASSIGN_OR_RETURN(auto tower, build_vision_tower(*spec.vision, images_of));
  model.entry_blocks = tower.size() + 1;
  model.blocks.insert(model.blocks.begin(), std::make_move_iterator(tower.begin()),
                      std::make_move_iterator(tower.end()));
  model.input = [](const nn::MicrobatchContext& context) { return context.tensor(kPatches); };
  model.edge_rows = [](const nn::MicrobatchContext& context) { return context.tokens.size(0); };
  model.parallelize = [spec, embedding](Model& whole, const ParallelOptions& parallel) {
    split_embedding(*embedding, parallel);
    return parallelize_decoder(whole, spec, parallel);
  };
  return model;
}

std::unique_ptr<Objective> objective(const models::ModelSpec& spec) {
  return std::make_unique<VlmObjective>(spec, siglip2_adapter(*spec.vision));
}

}  // namespace titan::model::vlm
