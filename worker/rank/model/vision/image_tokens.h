#pragma once

// Puts the results of the vision tower in the places of a text's image tokens.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/nn/layers.h"

namespace titan::model {

// Name of the tensor of a microbatch that says which of its tokens are images: int64 [B, T], the row of the tower's
// results that takes the place of a token's embedding, or -1 for a token of the text.
inline constexpr char kImageRows[] = "image_rows";

// Returns kImageRows for tokens int64 [B, T] on the CPU: the numbers `rows`, int64 [patches], in order, for the tokens
// that are `image_token`, and -1 elsewhere. Throws c10::Error that names the numbers of both if they differ.
at::Tensor image_rows(const at::Tensor& tokens, int64_t image_token, const at::Tensor& rows);

// Returns `embedded` [B, T, dim] with the rows of `visual` [P, dim], P at least 1, in the places that `rows`, int64
// [B, T], gives them. Gradients go to both inputs; a row of `visual` without a place gets zeros. If the rows of
// `visual` are longer, [P, k * dim], so is the result, [B, T, k * dim], with zeros for tokens of the text.
at::Tensor place_images(const at::Tensor& embedded, const at::Tensor& rows, const at::Tensor& visual);

// The language model's embedding, after the vision tower: "tok_embeddings".
class MultimodalEmbedding : public TokenEmbedding {
 public:
  using TokenEmbedding::TokenEmbedding;
  // `input` [1, P, D] is the tower's result for this rank's images of the microbatch. Embeds context.tokens [B, T] and
  // places the images: [B, T, D]. D may be a multiple of the embedding's width (place_images()).
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  // Seams for ranks that hold a part of a row.
  nn::Transform share_images;  // Maps the tower's result [Images::padded_patches, D] to the rows that kImageRows means.
  nn::Transform own_tokens;    // Maps kImageRows [B, T] to those of this rank's activations [B, T / size, D].
};

// Sets the seams for tensor and context ranks, all of which have the whole tower. With sequence parallelism each tensor
// rank places the images of its tokens, so the gradients of the tower's result are summed over the ranks; otherwise all
// have the whole sum. Context ranks may encode different images, and exchange the results.
void split_embedding(MultimodalEmbedding& embedding, const ParallelOptions& options);

}  // namespace titan::model
