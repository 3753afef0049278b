#include "worker/rank/model/qwen3_vl/qwen3_vl.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/qwen3_vl.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/decoder/options.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/qwen3_vl/deepstack.h"
#include "worker/rank/model/qwen3_vl/image_adapter.h"
#include "worker/rank/model/qwen3_vl/inputs.h"
#include "worker/rank/model/vision/image_tokens.h"
#include "worker/rank/model/vision/qwen3_vl.h"
#include "worker/rank/model/vlm/objective.h"

namespace titan::model::qwen3_vl {
namespace {

std::unique_ptr<DecoderLayer> make_layer(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, int64_t index,
                                         const LayerInits& inits, int64_t seq_len) {
  std::unique_ptr<DecoderLayer> layer;
  if (index < spec.deepstack_layers()) {
    layer = std::make_unique<DeepstackLayer>(text, index, inits, seq_len);
  } else {
    layer = std::make_unique<DecoderLayer>(text, index, inits, seq_len, /*rope=*/nullptr);
  }
  dynamic_cast<nn::GroupedAttention&>(*layer->attention).rotation = [](const nn::MicrobatchContext& context) {
    return context.tensor(kTokenRotation);
  };
  return layer;
}

}  // namespace

absl::StatusOr<Model> build_model(const models::ModelSpec& text, const models::Qwen3VlSpec& spec,
                                  const BuildOptions& options) {
  if (absl::Status bad = check(text); !bad.ok()) return bad;
  if (const std::string bad = models::inconsistency(text, spec); !bad.empty())
    return absl::InvalidArgumentError(absl::StrCat(text.name, " ", text.flavor, ": ", bad));
  const DecoderInits inits = common_inits(text);
  Model model;
  TITAN_ASSIGN_OR_RETURN(model.blocks, build_qwen3_vl_vision(spec.vision, qwen3_vl_images_of));
  auto made = std::make_unique<MultimodalEmbedding>(text, inits.embedding);
  MultimodalEmbedding* const embedding = made.get();
  nn::Parameter* const tied = text.tied_embeddings ? &embedding->tok_embeddings.weight() : nullptr;
  model.blocks.push_back(std::move(made));
  model.entry_blocks = model.blocks.size() + static_cast<size_t>(spec.deepstack_layers());
  for (int64_t layer = 0; layer < text.n_layers; ++layer)
    model.blocks.push_back(make_layer(text, spec, layer, inits.layer(layer), options.seq_len));
  auto head = std::make_unique<Head>(text, inits.head, tied);
  head->max_logit_bytes = options.max_logit_bytes;
  model.blocks.push_back(std::move(head));
  model.input = [](const nn::MicrobatchContext& context) { return context.tensor(kPatches); };
  model.edge_rows = [](const nn::MicrobatchContext& context) { return context.tokens.size(0); };
  model.loss.by_parts = loss_by_parts(text);
  model.parallelize = [text, embedding](Model& whole, const ParallelOptions& parallel) {
    split_embedding(*embedding, parallel);
    return parallelize_decoder(whole, text, parallel);
  };
  return model;
}

models::ModelSpec language_model(models::ModelSpec spec) {
  spec.qwen3_vl.reset();
  return spec;
}

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_model(language_model(spec), *spec.qwen3_vl, options);
}

std::unique_ptr<Objective> objective(const models::ModelSpec& spec) {
  return std::make_unique<vlm::VlmObjective>(spec, image_adapter(spec));
}

}  // namespace titan::model::qwen3_vl
