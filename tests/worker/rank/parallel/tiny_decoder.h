#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <string>

#include "worker/rank/nn/attention.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::testing {

// Options of a TinyDecoder's attention.
struct TinyOptions {
  std::string name;
  bool biases = false, head_norms = false, sinks = false;
  bool latent = false, low_rank_queries = false;
};

// Computes attention in plain ATen, with sinks, as a separate oracle. Returns [B, H, T, Dv].
inline at::Tensor causal_attention(const nn::AttentionInput& input, const nn::MicrobatchContext&) {
  const int64_t length = input.q.size(2), groups = input.q.size(1) / input.k.size(1);
  const at::Tensor k = input.k.repeat_interleave(groups, 1), v = input.v.repeat_interleave(groups, 1);
  const at::Tensor later = at::ones({length, length}, input.q.options().dtype(at::kBool)).triu(1);
  at::Tensor scores = at::matmul(input.q, k.transpose(2, 3)) * input.scale;
  scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  if (input.sinks.defined()) {
    const at::Tensor sinks = input.sinks.view({1, -1, 1, 1}).expand({scores.size(0), scores.size(1), length, 1});
    scores = at::cat({scores, sinks}, 3);
  }
  return at::matmul(at::softmax(scores, 3).narrow(3, 0, length), v);
}

// A whole decoder of one layer in one block, with everything that a tensor axis splits.
class TinyDecoder : public nn::Block {
 public:
  static constexpr int64_t kVocabulary = 24, kDim = 16, kHeads = 8, kKvHeads = 4, kHeadDim = 6, kHidden = 20;
  static constexpr int64_t kQueryRank = 10, kKvRank = 6, kNope = 4, kRope = 2, kValue = 5;

  explicit TinyDecoder(const TinyOptions& options)
      : Block("decoder"),
        embedding(declare(), "tok_embeddings.weight", kVocabulary, kDim, {}),
        attention(make_attention(options)),
        feed_forward(declare(), "feed_forward", kDim, kHidden, {}, {}),
        attention_norm(declare(), "attention_norm.weight", kDim, 1e-5),
        ffn_norm(declare(), "ffn_norm.weight", kDim, 1e-5),
        norm(declare(), "norm.weight", kDim, 1e-5),
        output(declare(), "output.weight", kDim, kVocabulary, {}) {
    attention->core = causal_attention;
  }

  // Returns logits [B, T, kVocabulary], or this rank's part of them, of the tokens, int64 [B, T].
  at::Tensor forward(const at::Tensor& tokens, const nn::MicrobatchContext& context) override {
    const at::Tensor x = embedding.forward(tokens);
    const at::Tensor h = x + attention->forward(attention_norm.forward(x), context);
    return output.forward(norm.forward(h + feed_forward.forward(ffn_norm.forward(h))));
  }

  void init_buffers(at::Device device, at::ScalarType dtype) override { rope->fill(device, dtype); }

  void split(const parallel::TensorParallel& tensor, bool loss_parallel) {
    parallel::split_embedding(embedding, tensor);
    if (grouped != nullptr) parallel::split_attention(*grouped, tensor);
    if (latent != nullptr) parallel::split_attention(*latent, tensor);
    parallel::split_feed_forward(feed_forward, tensor);
    for (nn::RmsNorm* one : {&attention_norm, &ffn_norm, &norm}) parallel::split_norm(*one, tensor);
    parallel::split_head(output, tensor, loss_parallel);
  }

  nn::GroupedAttention* grouped = nullptr;
  nn::LatentAttention* latent = nullptr;
  std::shared_ptr<nn::Rope> rope;
  nn::Embedding embedding;
  std::unique_ptr<nn::SelfAttention> attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm attention_norm, ffn_norm, norm;
  nn::Linear output;

 private:
  std::unique_ptr<nn::SelfAttention> make_attention(const TinyOptions& options) {
    nn::RopeOptions rope_options{.head_dim = options.latent ? kRope : kHeadDim, .max_seq_len = 64};
    rope = std::make_shared<nn::Rope>(rope_options);
    if (options.latent) {
      auto made = std::make_unique<nn::LatentAttention>(
          declare(), "attention",
          nn::LatentAttentionOptions{.dim = kDim,
                                     .heads = kHeads,
                                     .q_lora_rank = options.low_rank_queries ? kQueryRank : 0,
                                     .kv_lora_rank = kKvRank,
                                     .nope_dim = kNope,
                                     .rope_dim = kRope,
                                     .v_dim = kValue,
                                     .softmax_scale = 0.4},
          rope);
      latent = made.get();
      return made;
    }
    nn::AttentionOptions grouped_options{.dim = kDim, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim};
    if (options.biases) grouped_options.bias_init = nn::Init{};
    if (options.sinks) grouped_options.sinks_init = nn::Init{};
    if (options.head_norms) grouped_options.qk_norm_eps = 1e-6;
    auto made = std::make_unique<nn::GroupedAttention>(declare(), "attention", grouped_options, rope);
    grouped = made.get();
    return made;
  }
};

// Draws a whole parameter in its global shape, the same on every rank. Its values have order 1, so that each of them
// matters.
inline at::Tensor whole_value(const nn::Parameter& parameter, at::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(parameter.fqn));
  const at::Tensor value = at::randn(parameter.global_shape, generator, at::TensorOptions().dtype(at::kDouble));
  return (parameter.global_shape.size() == 2 ? value * 0.4 : value + 1).to(type);
}

// Returns this rank's part of a tensor that has the parameter's global shape.
inline at::Tensor part_of(const at::Tensor& whole, const nn::Parameter& parameter) {
  at::Tensor part = whole;
  for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
    part = part.narrow(static_cast<int64_t>(dim), parameter.offset[dim], parameter.shape[dim]);
  }
  return part.clone(at::MemoryFormat::Contiguous);  // Has separate storage, which a test may free.
}

inline void fill(nn::Block& block, at::ScalarType type) {
  for (nn::Parameter& parameter : block.parameters()) {
    parameter.weight = part_of(whole_value(parameter, type), parameter).set_requires_grad(true);
  }
  block.init_buffers(at::kCPU, type);
}

}  // namespace titan::testing
