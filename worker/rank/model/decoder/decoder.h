#pragma once

// Declares what all decoder families share: the blocks, torchtitan's initial distributions of their parameters, and
// their split over a mesh. A family defines how its parameters are drawn, and its spec defines the rest.

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
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/nn/rope.h"

namespace titan::model {

// Initial distributions of one layer.
struct LayerInits {
  nn::Init attention_in, attention_out;
  std::optional<nn::Init> attention_bias, sinks;
  nn::Init w1, w2_w3;  // For the dense feed-forward.
  nn::MoeOptions moe;  // Only the inits are read.
};

// Initial distributions of a whole decoder.
struct DecoderInits {
  nn::Init embedding, head;
  std::function<LayerInits(int64_t layer)> layer;
};

class TokenEmbedding : public nn::Block {
 public:
  TokenEmbedding(const models::ModelSpec& spec, nn::Init init);
  // input: int64 tokens [B, T]. Returns activations [B, T, D].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  bool backward_reads_weights() const override { return false; }

  nn::Embedding tok_embeddings;

 protected:
  // Maps int64 tokens [B, T] to activations [B, T, D], scaled as the spec says.
  at::Tensor embed(const at::Tensor& tokens) const;

 private:
  const double scale_;
};

// Residual block: h = x + scale * attention(x); h + scale * (feed_forward or moe)(h), with norms where the spec places
// them (models::NormPlacement).
class DecoderLayer : public nn::Block, public nn::HasAttention, public nn::HasExperts {
 public:
  // The spec and the layer's index decide the mask, the rotation, latent or grouped attention, and experts. `rope`
  // null: the layer has no positions.
  DecoderLayer(const models::ModelSpec& spec, int64_t index, const LayerInits& inits, int64_t seq_len,
               std::shared_ptr<nn::Rope> rope);
  // Maps activations [B, T, D] to [B, T, D].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  void init_buffers(at::Device device, at::ScalarType dtype) override;
  nn::SelfAttention& self_attention() override { return *attention; }
  nn::MixtureOfExperts* mixture() override { return moe.get(); }

  // Declaration order: attention, then either feed_forward or moe, then the norms that the placement has.
  std::unique_ptr<nn::SelfAttention> attention;
  std::optional<nn::FeedForward> feed_forward;
  std::unique_ptr<nn::MixtureOfExperts> moe;
  std::optional<nn::RmsNorm> attention_norm, attention_post_norm, ffn_norm, ffn_post_norm;

 private:
  // Returns what a branch adds to the residual stream, [B, T, D] each.
  at::Tensor term(const at::Tensor& branch, const std::optional<nn::RmsNorm>& post_norm) const;
  at::Tensor feed(const at::Tensor& input, const nn::MicrobatchContext& context) const;

  const double residual_scale_;
  std::shared_ptr<nn::Rope> rope_;
};

// Final norm and vocabulary projection. A tied head reads the embedding's weight.
class Head : public nn::Block, public nn::HasLoss {
 public:
  Head(const models::ModelSpec& spec, nn::Init init, nn::Parameter* tied = nullptr);
  // Maps activations [B, T, D] to logits [B, T, V].
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  // input [B, T, D]. Returns the sum of the cross-entropies, a scalar.
  at::Tensor loss(const at::Tensor& input, const nn::MicrobatchContext& context, const nn::Loss& loss) override;
  std::vector<nn::Parameter*> shared_parameters() override;
  bool tied() const { return tied_ != nullptr; }

  nn::RmsNorm norm;
  nn::Linear output;
  int64_t max_logit_bytes = 0;  // BuildOptions::max_logit_bytes.

 private:
  // Returns what the vocabulary projection multiplies, [B, T, D].
  at::Tensor features(const at::Tensor& input) const;

  const double logit_divisor_, logit_softcap_;
  nn::Parameter* tied_;
};

// Returns the loss of a head that computes some columns of the vocabulary at a time, on one rank.
nn::Loss::ByParts loss_by_parts(const models::ModelSpec& spec);

// Makes the embedding of a decoder.
using MakeEmbedding = std::function<std::unique_ptr<TokenEmbedding>(const models::ModelSpec& spec, nn::Init init)>;

// Builds the whole model: embedding, layers, head, and how they are split over a mesh. `make_embedding` empty: a
// TokenEmbedding. InvalidArgument names the numbers of the spec that do not fit together.
absl::StatusOr<Model> build_decoder(const models::ModelSpec& spec, const BuildOptions& options,
                                    const DecoderInits& inits, const MakeEmbedding& make_embedding = {});

// Returns a normal distribution, truncated at +-2 like torchtitan's. The bounds are absolute, so with small deviations
// they cut off nothing.
nn::Init truncated(double std);

// Returns the distribution of matrices that write to the residual stream. The deviation is 0.02 / sqrt(2 n), where n is
// the layer's number from 1 (spec.depth_init) or the number of layers.
nn::Init depth_init(const models::ModelSpec& spec, int64_t layer);

// Returns a normal distribution of deviation dim^-0.5, truncated at 3 deviations.
nn::Init head_init(const models::ModelSpec& spec);

// Returns the initial distributions of Llama, Qwen and DeepSeek: deviation 0.02 for matrices that read the residual
// stream, depth_init for wo, w2, w3 and the router, N(0, 1) for the embedding. A tied embedding is drawn like the head.
DecoderInits common_inits(const models::ModelSpec& spec);

// Returns common_inits() with other layers.
DecoderInits inits_with_layers(const models::ModelSpec& spec, std::function<LayerInits(int64_t layer)> layer);

// Splits a decoder that has no values yet over the tensor, expert and context axes of a mesh. This is the only place
// that decides which of its layers is split how. Other blocks stay whole. InvalidArgument names the numbers that do not
// divide.
absl::Status parallelize_decoder(Model& model, const models::ModelSpec& spec, const ParallelOptions& options);

}  // namespace titan::model
