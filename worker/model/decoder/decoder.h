#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/model/model.h"
#include "worker/nn/attention.h"
#include "worker/nn/feed_forward.h"
#include "worker/nn/layers.h"
#include "worker/nn/moe.h"
#include "worker/nn/rope.h"

// What all families of decoders have in common; a family says how its layers are put together and drawn.
namespace titan::model {

class TokenEmbedding : public nn::Block {
 public:
  TokenEmbedding(const models::ModelSpec& spec, nn::Init init);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::Embedding tok_embeddings;
};

// Initial distributions of one layer.
struct LayerInits {
  nn::Init attention_in, attention_out;
  std::optional<nn::Init> attention_bias, sinks;
  nn::Init w1, w2, w3;  // Dense feed-forward.
  nn::MoeOptions moe;   // Only its inits are read.
};

// Pre-norm residual block: h = x + attention(norm(x)); h + (feed_forward or moe)(norm(h)).
class DecoderLayer : public nn::Block {
 public:
  // Mask, rotation, latent or grouped attention and experts follow from the spec and the layer's index. A null rope: no
  // positions in this layer.
  DecoderLayer(const models::ModelSpec& spec, int64_t index, const LayerInits& inits, int64_t seq_len,
               std::shared_ptr<nn::Rope> rope);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  void init_buffers(at::Device device, at::ScalarType dtype) override;

  // In the order of their declaration: attention, then one of feed_forward and moe, then the norms.
  std::unique_ptr<nn::SelfAttention> attention;
  std::optional<nn::FeedForward> feed_forward;
  std::unique_ptr<nn::MixtureOfExperts> moe;
  std::optional<nn::RmsNorm> attention_norm, ffn_norm;

 private:
  std::shared_ptr<nn::Rope> rope_;
};

// Final norm and vocabulary projection; a tied head reads the embedding's weight.
class Head : public nn::Block {
 public:
  Head(const models::ModelSpec& spec, nn::Init init, nn::Parameter* tied = nullptr);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  std::vector<nn::Parameter*> shared_parameters() override;

  nn::RmsNorm norm;
  std::optional<nn::Linear> output;  // Reads the tied weight when there is one.
};

}  // namespace titan::model
