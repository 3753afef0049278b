#pragma once

// The blocks of Flux, in order: Embed, DoubleBlocks, SingleBlocks, FinalLayer. One tensor travels between them: the
// vector that modulates all blocks as token 0, then the text's tokens, then the image's, [B, 1 + Tt + Ti, dim].

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/models/flux.h"
#include "worker/rank/model/flux/inputs.h"
#include "worker/rank/model/flux/layers.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/layers.h"

namespace titan::model::flux {

class FluxBlock : public nn::Block {
 public:
  FluxBlock(std::string name, const models::FluxSpec& spec) : Block(std::move(name)), spec_(spec) {}

  // Runs the block with the inputs of the context (flux_inputs()): `input` [B, T, channels] and the result are those of
  // run().
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) final {
    return run(input, flux_inputs(context));
  }
  // `input` is the image's noised latents [B, Ti, in_channels] for the first block, else activations [B, 1 + Tt + Ti,
  // dim]. Returns activations, or from the last block the image's velocity [B, Ti, in_channels].
  virtual at::Tensor run(const at::Tensor& input, const FluxInputs& inputs) = 0;

 protected:
  const models::FluxSpec& spec() const { return spec_; }
  // Returns the rotation of all tokens for activations of `type`.
  at::Tensor rotation(const FluxInputs& inputs, at::ScalarType type) const;

 private:
  const models::FluxSpec spec_;
};

// Projects the image's and the text's tokens, and computes the vector from time, text and guidance.
class Embed : public FluxBlock {
 public:
  explicit Embed(const models::FluxSpec& spec);
  // Maps latents [B, Ti, in_channels] to activations [B, 1 + Tt + Ti, dim].
  at::Tensor run(const at::Tensor& latents, const FluxInputs& inputs) override;

  nn::Linear img_in, txt_in;
  VectorLayers time_in, vector_in;
  std::optional<VectorLayers> guidance_in;
};

// Layers of one of a double block's streams, of the text or of the image.
struct Stream {
  // `name` is for example "double_blocks.0.img".
  Stream(const nn::Declare& declare, const std::string& name, const models::FluxSpec& spec);
  // Returns the normed heads of the modulated tokens x [B, T, dim].
  Heads heads(const at::Tensor& x, const Modulation& modulation, int64_t head_dim) const;
  // Returns x [B, T, dim] plus what attention found, mixed [B, T, heads * head_dim], plus the feed-forward: [B, T,
  // dim].
  at::Tensor finish(const at::Tensor& x, const at::Tensor& mixed, const std::vector<Modulation>& modulations) const;

  nn::Linear mod;  // [6 dim, dim]: shift, scale and gate of attention, then of the feed-forward.
  nn::Linear qkv;  // [3 dim, dim]: all heads of q, then of k, then of v.
  HeadNorms norm;
  nn::Linear proj;             // [dim, dim]
  nn::Linear mlp_in, mlp_out;  // [mlp, dim], [dim, mlp]
  nn::Transform to_shares;     // Turns the outputs of this rank's rows of qkv into q, k and v of its heads.
};

// Text and image have separate weights and attend over the tokens of both.
class DoubleBlock : public FluxBlock {
 public:
  DoubleBlock(const models::FluxSpec& spec, int64_t index);
  // Maps activations [B, 1 + Tt + Ti, dim] to the same shape.
  at::Tensor run(const at::Tensor& input, const FluxInputs& inputs) override;

  Stream img, txt;
  nn::AttentionCore core = nn::attend;  // Replaced for context parallelism.
};

// Text and image share one attention and a feed-forward next to it (arXiv 2302.05442).
class SingleBlock : public FluxBlock {
 public:
  SingleBlock(const models::FluxSpec& spec, int64_t index);
  // Maps activations [B, 1 + Tt + Ti, dim] to the same shape.
  at::Tensor run(const at::Tensor& input, const FluxInputs& inputs) override;

  nn::Linear modulation;  // [3 dim, dim]: shift, scale and gate.
  nn::Linear linear1;     // [3 dim + mlp, dim]: all heads of q, of k, of v, then the feed-forward's first layer.
  HeadNorms norm;
  nn::Linear linear2;       // [dim, dim + mlp]: attention's projection next to the feed-forward's second layer.
  nn::Transform to_shares;  // Turns the outputs of this rank's rows of linear1 into q, k, v and channels of its heads.
  nn::Transform to_pieces;  // Turns the inputs that this rank has for linear2 into those of its columns.
  nn::AttentionCore core = nn::attend;  // Replaced for context parallelism.
};

// Norms and projects the image's tokens.
class FinalLayer : public FluxBlock {
 public:
  explicit FinalLayer(const models::FluxSpec& spec);
  // Maps activations [B, 1 + Tt + Ti, dim] to the velocity [B, Ti, in_channels].
  at::Tensor run(const at::Tensor& input, const FluxInputs& inputs) override;

  nn::Linear modulation;  // "adaLN_modulation.1" [2 dim, dim]: shift and scale.
  nn::Linear linear;      // [in_channels, dim]
};

}  // namespace titan::model::flux
