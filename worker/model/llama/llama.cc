#include "worker/model/llama/llama.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace titan::model::llama {
namespace {

using nn::Init;

// Cut at absolute +-2, as torchtitan does: at these deviations that is no cut at all.
Init truncated(double std) { return {Init::Kind::kTruncatedNormal, std, -2.0, 2.0}; }

Init head_init(int64_t dim) {
  const double std = 1.0 / std::sqrt(static_cast<double>(dim));
  return {Init::Kind::kTruncatedNormal, std, -3 * std, 3 * std};
}

// Matrices that write to the residual stream (and w3) start smaller the deeper they sit.
Init depth_init(const models::ModelSpec& spec, int64_t layer) {
  const int64_t depth = spec.depth_init ? layer + 1 : spec.n_layers;
  return truncated(0.02 / std::sqrt(2.0 * static_cast<double>(depth)));
}

nn::AttentionOptions attention_options(const models::ModelSpec& spec, int64_t layer) {
  return {.dim = spec.dim,
          .heads = spec.n_heads,
          .kv_heads = spec.n_kv_heads,
          .head_dim = spec.head_dim,
          .in_init = truncated(0.02),
          .out_init = depth_init(spec, layer)};
}

nn::RopeOptions rope_options(const models::ModelSpec& spec, int64_t seq_len) {
  nn::RopeOptions options{.head_dim = spec.head_dim, .max_seq_len = seq_len, .theta = spec.rope_theta};
  options.scaling.enabled = spec.rope_scaling.has_value();
  if (spec.rope_scaling) {
    options.scaling.factor = spec.rope_scaling->factor;
    options.scaling.low_freq_factor = spec.rope_scaling->low_freq_factor;
    options.scaling.high_freq_factor = spec.rope_scaling->high_freq_factor;
    options.scaling.original_context = spec.rope_scaling->original_seq_len;
  }
  return options;
}

absl::Status check(const models::ModelSpec& spec) {
  const auto refuse = [&](const char* what) {
    return absl::UnimplementedError(
        absl::StrCat("model.flavor: ", spec.name, " ", spec.flavor, " needs ", what, ", which is not supported yet"));
  };
  if (spec.mask != models::Mask::kCausal) return refuse("a document mask");
  if (spec.attention != models::Attention::kGrouped || spec.rope != models::Rope::kInterleaved || spec.yarn ||
      spec.qk_norm || spec.attention_bias || spec.attention_sinks || spec.sliding_window != 0 ||
      spec.nope_layer_step != 0 || spec.attention_chunk != 0) {
    return refuse("another kind of attention");
  }
  if (spec.moe) return refuse("experts");
  if (spec.tied_embeddings) return refuse("tied embeddings");
  if (spec.n_kv_heads <= 0 || spec.n_heads % spec.n_kv_heads != 0 || spec.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, " ", spec.flavor, ": ", spec.n_heads, " heads of ",
                                                   spec.head_dim, " do not divide over ", spec.n_kv_heads,
                                                   " key-value heads"));
  }
  return absl::OkStatus();
}

}  // namespace

TokenEmbedding::TokenEmbedding(const models::ModelSpec& spec)
    : Block("tok_embeddings"),
      tok_embeddings(declare(), "tok_embeddings.weight", spec.vocab_size, spec.dim, {Init::Kind::kNormal, 1.0}) {}

at::Tensor TokenEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext&) {
  return tok_embeddings.forward(input);
}

Layer::Layer(const models::ModelSpec& spec, int64_t index, std::shared_ptr<nn::Rope> rope)
    : Block(absl::StrCat("layers.", index)),
      attention(declare(), name() + ".attention", attention_options(spec, index), rope),
      feed_forward(declare(), name() + ".feed_forward", spec.dim, spec.ffn_hidden, truncated(0.02),
                   depth_init(spec, index)),
      attention_norm(declare(), name() + ".attention_norm.weight", spec.dim, spec.norm_eps),
      ffn_norm(declare(), name() + ".ffn_norm.weight", spec.dim, spec.norm_eps),
      rope_(std::move(rope)) {}

at::Tensor Layer::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const at::Tensor h = input + attention.forward(attention_norm.forward(input), context);
  return h + feed_forward.forward(ffn_norm.forward(h));
}

Head::Head(const models::ModelSpec& spec)
    : Block("output"),
      norm(declare(), "norm.weight", spec.dim, spec.norm_eps),
      output(declare(), "output.weight", spec.dim, spec.vocab_size, head_init(spec.dim)) {}

at::Tensor Head::forward(const at::Tensor& input, const nn::MicrobatchContext&) {
  return output.forward(norm.forward(input));
}

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  if (absl::Status bad = check(spec); !bad.ok()) return bad;
  const auto rope = std::make_shared<nn::Rope>(rope_options(spec, options.seq_len));
  Model model;
  model.blocks.push_back(std::make_unique<TokenEmbedding>(spec));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    model.blocks.push_back(std::make_unique<Layer>(spec, layer, rope));
  }
  model.blocks.push_back(std::make_unique<Head>(spec));
  return model;
}

}  // namespace titan::model::llama
