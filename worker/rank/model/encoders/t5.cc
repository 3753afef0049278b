#include "worker/rank/model/encoders/t5.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/rank/model/encoders/int8_rows.h"
#include "worker/rank/model/encoders/layers.h"
#include "worker/rank/nn/layers.h"

namespace titan::encoders {
namespace {

constexpr char kEmbedding[] = "shared.weight";
constexpr char kPositionTable[] = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";

// transformers draws random weights of T5 by Mesh TensorFlow's rule: `size` is the number of summands of the layer.
nn::Init normal(const T5Options& options, int64_t size) {
  return {.kind = nn::Init::Kind::kNormal, .std = options.init_factor / std::sqrt(static_cast<double>(size))};
}

class T5Embedding final : public EncoderBlock {
 public:
  explicit T5Embedding(const T5Options& options)
      : EncoderBlock("embedding"),
        options_(options),
        embedding_(frozen(declare()), kEmbedding, options.vocab_size, options.dim, normal(options, 1)),
        table_(frozen(declare()), kPositionTable, options.num_buckets, options.num_heads,
               normal(options, options.dim)) {}

  at::Tensor run(const at::Tensor& ids, EncoderCall& call) const override {
    const at::Tensor buckets = position_buckets(options_, ids.size(1)).to(ids.device());
    call.position_bias = table_.forward(buckets).permute({2, 0, 1}).unsqueeze(0).contiguous();
    return embedding_.forward(ids);
  }

 private:
  const T5Options options_;
  nn::Embedding embedding_;
  nn::Embedding table_;  // [num_buckets, heads]: one bias for each bucket and head.
};

// Attention without a factor on the logits, to which the position bias is added.
class T5Attention {
 public:
  T5Attention(const nn::Declare& declare, const std::string& fqn, const T5Options& options)
      : heads_(options.num_heads),
        q_(declare, fqn + ".q.weight", options.dim, width(options), normal(options, options.dim * options.head_dim)),
        k_(declare, fqn + ".k.weight", options.dim, width(options), normal(options, options.dim)),
        v_(declare, fqn + ".v.weight", options.dim, width(options), normal(options, options.dim)),
        o_(declare, fqn + ".o.weight", width(options), options.dim, normal(options, width(options))) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& position_bias) const {
    const std::vector<at::Tensor> qkv = nn::project_each(input, {&q_, &k_, &v_});
    const at::Tensor out = at::scaled_dot_product_attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]),
                                                            position_bias, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                            /*scale=*/1.0);
    return o_.forward(out.transpose(1, 2).flatten(2));
  }

 private:
  static int64_t width(const T5Options& options) { return options.num_heads * options.head_dim; }
  // [B, T, heads * head_dim] -> [B, heads, T, head_dim]
  at::Tensor by_head(const at::Tensor& x) const { return x.unflatten(-1, {heads_, -1}).transpose(1, 2); }

  int64_t heads_;
  nn::Linear q_, k_, v_, o_;
};

// T5 v1.1: wo(activation(wi_0 x) * wi_1 x). The first T5: wo(activation(wi x)).
class T5FeedForward {
 public:
  T5FeedForward(const nn::Declare& declare, const std::string& fqn, const T5Options& options)
      : activation_(options.activation),
        wi_(declare, fqn + (options.gated ? ".wi_0.weight" : ".wi.weight"), options.dim, options.ffn_hidden,
            normal(options, options.dim)) {
    if (options.gated) {
      gate_.emplace(declare, fqn + ".wi_1.weight", options.dim, options.ffn_hidden, normal(options, options.dim));
    }
    wo_.emplace(declare, fqn + ".wo.weight", options.ffn_hidden, options.dim, normal(options, options.ffn_hidden));
  }

  at::Tensor forward(const at::Tensor& input) const {
    at::Tensor hidden = activate(activation_, wi_.forward(input));
    if (gate_) hidden.mul_(gate_->forward(input));
    return wo_->forward(hidden);
  }

 private:
  Activation activation_;
  nn::Linear wi_;
  std::optional<nn::Linear> gate_, wo_;
};

class T5Layer final : public EncoderBlock {
 public:
  T5Layer(const T5Options& options, int64_t index)
      : EncoderBlock(absl::StrCat("layers.", index)),
        fqn_(absl::StrCat("encoder.block.", index, ".layer.")),
        attention_(frozen(declare()), fqn_ + "0.SelfAttention", options),
        attention_norm_(frozen(declare()), fqn_ + "0.layer_norm.weight", options.dim, options.norm_eps),
        feed_forward_(frozen(declare()), fqn_ + "1.DenseReluDense", options),
        feed_forward_norm_(frozen(declare()), fqn_ + "1.layer_norm.weight", options.dim, options.norm_eps) {}

  at::Tensor run(const at::Tensor& input, EncoderCall& call) const override {
    TORCH_CHECK(call.position_bias.defined(), "T5's ", name(), ": the first block computes the position bias");
    at::Tensor x = input + attention_.forward(attention_norm_.forward(input), call.position_bias);
    return x.add_(feed_forward_.forward(feed_forward_norm_.forward(x)));
  }

 private:
  const std::string fqn_;
  T5Attention attention_;
  nn::RmsNorm attention_norm_;
  T5FeedForward feed_forward_;
  nn::RmsNorm feed_forward_norm_;
};

class T5FinalNorm final : public EncoderBlock {
 public:
  explicit T5FinalNorm(const T5Options& options)
      : EncoderBlock("norm"),
        norm_(frozen(declare()), "encoder.final_layer_norm.weight", options.dim, options.norm_eps) {}

  at::Tensor run(const at::Tensor& input, EncoderCall& /*call*/) const override { return norm_.forward(input); }

 private:
  nn::RmsNorm norm_;
};

void store_in_int8(nn::Parameter& parameter) {
  parameter.packed_row = int8_row_bytes(parameter.shape[1]);
  parameter.products = &int8_matmul_recipe();
}

// A T5 stores one matrix under up to four names, because its two embeddings and its head may be tied.
std::vector<std::string> t5_candidates(const std::string& fqn) {
  if (fqn == kEmbedding) return {fqn, "encoder.embed_tokens.weight"};
  return {fqn};
}

}  // namespace

at::Tensor position_buckets(const T5Options& options, int64_t tokens) {
  const int64_t half = options.num_buckets / 2, exact = half / 2;
  const at::Tensor position = at::arange(tokens, at::kLong);
  const at::Tensor relative = position.unsqueeze(0) - position.unsqueeze(1);  // Key minus query.
  const at::Tensor distance = relative.abs();
  const double range = std::log(static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const at::Tensor ratio = distance.clamp_min(exact).to(at::kFloat) / static_cast<double>(exact);
  const at::Tensor above = (at::log(ratio) / range * static_cast<double>(half - exact)).to(at::kLong);
  const at::Tensor far = (above + exact).clamp_max(half - 1);
  return at::where(distance.lt(exact), distance, far) + relative.gt(0) * half;
}

TextEncoder build_t5(const T5Options& options, WeightForm form) {
  std::vector<std::unique_ptr<EncoderBlock>> blocks;
  blocks.push_back(std::make_unique<T5Embedding>(options));
  for (int64_t i = 0; i < options.num_layers; ++i) blocks.push_back(std::make_unique<T5Layer>(options, i));
  blocks.push_back(std::make_unique<T5FinalNorm>(options));
  TextEncoder encoder(std::move(blocks), {.model = "T5EncoderModel",
                                          .candidates = t5_candidates,
                                          .unused = {"decoder.", "lm_head.", "encoder.embed_tokens."}});
  for (nn::Parameter* parameter : encoder.parameters()) {
    if (form == WeightForm::kInt8 && parameter->of_linear) store_in_int8(*parameter);
  }
  return encoder;
}

}  // namespace titan::encoders
