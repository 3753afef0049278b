#pragma once

// SigLIP 2's vision encoder for images of any shape (NaFlex, arXiv 2502.14786), and the projector to a language model,
// as blocks of the engine. A patch attends to all patches of its image and to no others, as in the released model.
// Padding does not exist, because the images of a microbatch are one row of patches (images.h).

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/vision_spec.h"
#include "worker/rank/model/vision/images.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/layer_norm.h"
#include "worker/rank/nn/layers.h"

namespace titan::model {

// Embeds patches and adds the position table, resized to each image: "encoder.embeddings".
class PatchEmbedding : public nn::Block {
 public:
  PatchEmbedding(const models::VisionSpec& spec, ImagesOf images_of);
  // Maps the patches [1, P, patch_values], of any floating type, to [1, P, dim].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::Linear patch_embedding;
  nn::Parameter& position_embedding;  // [position_side^2, dim], row-major.

 private:
  const ImagesOf images_of_;
};

// Attention among the patches of each image.
class PatchAttention {
 public:
  PatchAttention(const nn::Declare& declare, const std::string& fqn, const models::VisionSpec& spec);
  // `context` is that of the images. Maps [1, P, dim] to [1, P, dim].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) const;

  nn::Linear q_proj, k_proj, v_proj, out_proj;
  nn::AttentionCore core = nn::attend;

 private:
  const int64_t head_dim_;
};

// Pre-norm residual block: h = x + self_attn(layer_norm1(x)); h + fc2(gelu(fc1(layer_norm2(h)))), with the tanh form of
// GELU. Its name is "encoder.layers.{index}".
class VisionLayer : public nn::Block {
 public:
  VisionLayer(const models::VisionSpec& spec, int64_t index, ImagesOf images_of);
  // Maps [1, P, dim] to [1, P, dim].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::LayerNorm layer_norm1;
  PatchAttention self_attn;
  nn::LayerNorm layer_norm2;
  nn::Linear fc1, fc2;

 private:
  const ImagesOf images_of_;
};

// Final norm and w2(silu(w1 x)): "projector".
class Projector : public nn::Block {
 public:
  explicit Projector(const models::VisionSpec& spec);
  // Maps [1, P, dim] to [1, P, out_dim].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::LayerNorm post_layernorm;
  nn::Linear w1, w2;
};

// Returns the tower's blocks in order: embeddings, layers, projector. InvalidArgument names the numbers of the spec
// that do not fit together, or a missing out_dim.
absl::StatusOr<std::vector<std::unique_ptr<nn::Block>>> build_vision_tower(const models::VisionSpec& spec,
                                                                           const ImagesOf& images_of);

}  // namespace titan::model
