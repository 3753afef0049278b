#include "worker/rank/model/encoders/clip_text.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/rank/model/encoders/layers.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/layer_norm.h"
#include "worker/rank/nn/layers.h"

namespace titan::encoders {
namespace {

constexpr char kPrefix[] = "text_model.";
constexpr int64_t kOldEosToken = 2;
constexpr nn::Init kNoBias{.kind = nn::Init::Kind::kZeros};

// Standard deviations of transformers' random weights.
nn::Init normal_of(const ClipTextOptions& options, double std) {
  return {.kind = nn::Init::Kind::kNormal, .std = std * options.init_factor};
}
nn::Init embedding_init(const ClipTextOptions& options) { return normal_of(options, 0.02); }
nn::Init out_init(const ClipTextOptions& options) {
  return normal_of(options, 1 / std::sqrt(static_cast<double>(options.dim)));
}
nn::Init in_init(const ClipTextOptions& options) {
  return normal_of(options, 1 / std::sqrt(2.0 * static_cast<double>(options.dim * options.num_layers)));
}
nn::Init hidden_init(const ClipTextOptions& options) {
  return normal_of(options, 1 / std::sqrt(2.0 * static_cast<double>(options.dim)));
}

class ClipEmbeddings final : public EncoderBlock {
 public:
  explicit ClipEmbeddings(const ClipTextOptions& options)
      : EncoderBlock("embeddings"),
        tokens_(frozen(declare()), absl::StrCat(kPrefix, "embeddings.token_embedding.weight"), options.vocab_size,
                options.dim, embedding_init(options)),
        positions_(frozen(declare()), absl::StrCat(kPrefix, "embeddings.position_embedding.weight"), options.max_tokens,
                   options.dim, embedding_init(options)) {}

  at::Tensor run(const at::Tensor& ids, EncoderCall& /*call*/) const override {
    const at::Tensor& positions = positions_.weight().weight;  // [max_tokens, D]
    TORCH_CHECK(ids.size(1) <= positions.size(0), "CLIP's text encoder has ", positions.size(0), " positions, got ",
                ids.size(1), " tokens");
    return tokens_.forward(ids) + positions.narrow(0, 0, ids.size(1));
  }

 private:
  nn::Embedding tokens_, positions_;
};

class ClipAttention {
 public:
  ClipAttention(const nn::Declare& declare, const std::string& fqn, const ClipTextOptions& options)
      : heads_(options.num_heads),
        q_(declare, fqn + ".q_proj.weight", options.dim, options.dim, in_init(options), &kNoBias),
        k_(declare, fqn + ".k_proj.weight", options.dim, options.dim, in_init(options), &kNoBias),
        v_(declare, fqn + ".v_proj.weight", options.dim, options.dim, in_init(options), &kNoBias),
        out_(declare, fqn + ".out_proj.weight", options.dim, options.dim, out_init(options), &kNoBias) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& ids) const {
    const std::vector<at::Tensor> qkv = nn::project_each(input, {&q_, &k_, &v_});
    nn::AttentionInput heads{.q = by_head(qkv[0]), .k = by_head(qkv[1]), .v = by_head(qkv[2])};
    heads.scale = 1 / std::sqrt(static_cast<double>(heads.q.size(3)));
    const at::Tensor out = nn::attend(heads, {.tokens = ids});
    return out_.forward(out.transpose(1, 2).flatten(2));
  }

 private:
  // [B, T, D] -> [B, heads, T, D / heads]
  at::Tensor by_head(const at::Tensor& x) const { return x.unflatten(-1, {heads_, -1}).transpose(1, 2); }

  int64_t heads_;
  nn::Linear q_, k_, v_, out_;
};

class ClipLayer final : public EncoderBlock {
 public:
  ClipLayer(const ClipTextOptions& options, int64_t index)
      : EncoderBlock(absl::StrCat("layers.", index)),
        fqn_(absl::StrCat(kPrefix, "encoder.layers.", index, ".")),
        activation_(options.activation),
        attention_(frozen(declare()), fqn_ + "self_attn", options),
        norm1_(frozen(declare()), fqn_ + "layer_norm1", options.dim, options.norm_eps),
        fc1_(frozen(declare()), fqn_ + "mlp.fc1.weight", options.dim, options.ffn_hidden, hidden_init(options),
             &kNoBias),
        fc2_(frozen(declare()), fqn_ + "mlp.fc2.weight", options.ffn_hidden, options.dim, in_init(options), &kNoBias),
        norm2_(frozen(declare()), fqn_ + "layer_norm2", options.dim, options.norm_eps) {}

  at::Tensor run(const at::Tensor& input, EncoderCall& call) const override {
    at::Tensor x = input + attention_.forward(norm1_.forward(input), call.ids);
    return x.add_(fc2_.forward(activate(activation_, fc1_.forward(norm2_.forward(x)))));
  }

 private:
  const std::string fqn_;
  Activation activation_;
  ClipAttention attention_;
  nn::LayerNorm norm1_;
  nn::Linear fc1_, fc2_;
  nn::LayerNorm norm2_;
};

// Takes each text's representative token, then normalizes it: the norm acts on each token alone.
class ClipPooling final : public EncoderBlock {
 public:
  explicit ClipPooling(const ClipTextOptions& options)
      : EncoderBlock("pooling"),
        eos_token_(options.eos_token),
        norm_(frozen(declare()), absl::StrCat(kPrefix, "final_layer_norm"), options.dim, options.norm_eps) {}

  at::Tensor run(const at::Tensor& input, EncoderCall& call) const override {
    const at::Tensor at = place(call.ids).view({-1, 1, 1}).expand({-1, 1, input.size(2)});
    return norm_.forward(input.gather(1, at).squeeze(1));
  }

 private:
  // Returns int64 [B]. A text without the token has place 0, as in transformers.
  at::Tensor place(const at::Tensor& ids) const {
    return eos_token_ == kOldEosToken ? ids.argmax(-1) : ids.eq(eos_token_).to(at::kInt).argmax(-1);
  }

  int64_t eos_token_;
  nn::LayerNorm norm_;
};

// transformers 5 writes a CLIPTextModel's weights without the prefix.
std::vector<std::string> clip_candidates(const std::string& fqn) {
  return {fqn, std::string(absl::StripPrefix(fqn, kPrefix))};
}

}  // namespace

TextEncoder build_clip_text(const ClipTextOptions& options) {
  std::vector<std::unique_ptr<EncoderBlock>> blocks;
  blocks.push_back(std::make_unique<ClipEmbeddings>(options));
  for (int64_t i = 0; i < options.num_layers; ++i) blocks.push_back(std::make_unique<ClipLayer>(options, i));
  blocks.push_back(std::make_unique<ClipPooling>(options));
  return {std::move(blocks),
          {.model = "CLIPTextModel",
           .candidates = clip_candidates,
           .unused = {"vision_model.", "visual_projection.", "text_projection.", "logit_scale",
                      "text_model.embeddings.position_ids", "embeddings.position_ids"}}};
}

}  // namespace titan::encoders
