#pragma once

// Puts the results of the vision tower in the places of a text's image tokens.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/vision/images.h"

namespace titan::model {

// Returns `embedded` [B, T, dim] with the rows at which `tokens` (int64 [B, T]) is `image_token` replaced by the rows
// of `visual` [P, dim], in order. Their numbers must be equal: on the CPU another number throws and names both; on a
// device it fails the step without a wait of the host. Gradients go to both inputs.
at::Tensor scatter_images(const at::Tensor& embedded, const at::Tensor& tokens, int64_t image_token,
                          const at::Tensor& visual);

// The language model's embedding, after the vision tower: "tok_embeddings".
class MultimodalEmbedding : public TokenEmbedding {
 public:
  MultimodalEmbedding(const models::ModelSpec& spec, nn::Init init, int64_t image_token, ImagesOf images_of);
  // `input` [1, P, D] is the tower's result for Images of this microbatch, and context.tokens the text, [B, T]. Returns
  // [B, T, D]. Unused patches are left out, so they get a gradient of zero.
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

 private:
  const int64_t image_token_;
  const ImagesOf images_of_;
};

}  // namespace titan::model
