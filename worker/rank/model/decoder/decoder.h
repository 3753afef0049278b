#pragma once

// What all families of decoders have in common: the blocks, torchtitan's initial distributions of their parameters, and
// how they are split over a mesh. A family says how its parameters are drawn, its spec says the rest.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/attention.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/nn/rope.h"

namespace titan::model {

// Initial distributions of one layer.
struct LayerInits {
  nn::Init attention_in, attention_out;
  std::optional<nn::Init> attention_bias, sinks;
  nn::Init w1, w2_w3;  // Dense feed-forward.
  nn::MoeOptions moe;  // Only its inits are read.
};

// The initial distributions of a whole decoder.
struct DecoderInits {
  nn::Init embedding, head;
  std::function<LayerInits(int64_t layer)> layer;
};

class TokenEmbedding : public nn::Block {
 public:
  TokenEmbedding(const models::ModelSpec& spec, nn::Init init);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  bool backward_reads_weights() const override { return false; }

  nn::Embedding tok_embeddings;
};

// Pre-norm residual block: h = x + attention(norm(x)); h + (feed_forward or moe)(norm(h)).
class DecoderLayer : public nn::Block, public nn::HasAttention, public nn::HasExperts {
 public:
  // Mask, rotation, latent or grouped attention and experts follow from the spec and the layer's index. A null rope: no
  // positions in this layer.
  DecoderLayer(const models::ModelSpec& spec, int64_t index, const LayerInits& inits, int64_t seq_len,
               std::shared_ptr<nn::Rope> rope);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  void init_buffers(at::Device device, at::ScalarType dtype) override;
  nn::SelfAttention& self_attention() override { return *attention; }
  nn::MixtureOfExperts* mixture() override { return moe.get(); }

  // In the order of their declaration: attention, then one of feed_forward and moe, then the norms.
  std::unique_ptr<nn::SelfAttention> attention;
  std::optional<nn::FeedForward> feed_forward;
  std::unique_ptr<nn::MixtureOfExperts> moe;
  std::optional<nn::RmsNorm> attention_norm, ffn_norm;

 private:
  std::shared_ptr<nn::Rope> rope_;
};

// Final norm and vocabulary projection; a tied head reads the embedding's weight.
class Head : public nn::Block, public nn::HasLoss {
 public:
  Head(const models::ModelSpec& spec, nn::Init init, nn::Parameter* tied = nullptr);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  at::Tensor loss(const at::Tensor& input, const nn::MicrobatchContext& context, const nn::Loss& loss) override;
  std::vector<nn::Parameter*> shared_parameters() override;
  bool tied() const { return tied_ != nullptr; }

  nn::RmsNorm norm;
  nn::Linear output;
  int64_t max_logit_bytes = 0;  // BuildOptions.

 private:
  nn::Parameter* tied_;
};

// The whole model: embedding, layers, head, and how they are split over a mesh. Errors: InvalidArgument names the
// numbers of the spec that do not fit together.
absl::StatusOr<Model> build_decoder(const models::ModelSpec& spec, const BuildOptions& options,
                                    const DecoderInits& inits);

// Normal, cut at absolute +-2, as torchtitan does: at these deviations that is no cut at all.
nn::Init truncated(double std);

// For matrices that write to the residual stream: they start smaller the deeper they sit.
nn::Init depth_init(const models::ModelSpec& spec, int64_t layer);

// Deviation dim^-0.5, cut at 3 deviations.
nn::Init head_init(const models::ModelSpec& spec);

// What Llama, Qwen and DeepSeek share: 0.02 for matrices that read the residual stream, depth_init for wo, w2, w3 and
// the router, N(0, 1) for the embedding; a tied embedding is drawn as the head that it is.
DecoderInits common_inits(const models::ModelSpec& spec);

// The same embedding and head around other layers.
DecoderInits inits_with_layers(const models::ModelSpec& spec, std::function<LayerInits(int64_t layer)> layer);

// Splits a decoder that is still without values over the tensor, expert and context axes of a mesh: the one place that
// says which of its layers is split how. InvalidArgument names the numbers that do not divide.
absl::Status parallelize_decoder(Model& model, const models::ModelSpec& spec, const ParallelOptions& options);

}  // namespace titan::model
