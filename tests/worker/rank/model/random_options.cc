#include "tests/worker/rank/model/random_options.h"

#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/plan/models/spec_json.h"

namespace titan::testing {
namespace {

// Standard distributions differ between libraries, so this draws by itself (splitmix64).
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}

  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *std::next(values.begin(), static_cast<int64_t>(next() % values.size()));
  }
  bool flip() { return next() % 2 == 0; }
  bool one_in(uint64_t n) { return next() % n == 0; }

 private:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

void draw_attention(Draw& draw, models::ModelSpec& spec) {
  spec.qk_norm = draw.flip();
  spec.qk_norm_whole = spec.qk_norm && draw.flip();
  spec.attention_bias = draw.flip();
  spec.attention_out_bias = draw.flip();
  spec.attention_sinks = draw.one_in(4);
  spec.attention_scale = draw.one_of({0.0, 0.3});
  spec.attention_softcap = draw.one_of({0.0, 2.5});
  spec.rotary_dim = draw.one_of<int64_t>({0, 2, 4, 8});
  spec.sliding_window = draw.one_of<int64_t>({0, 5, 9});
  spec.window_step = draw.one_of<int64_t>({0, 2, 3});
  spec.window_first_layer = draw.one_of<int64_t>({0, 1});
  if (spec.sliding_window > 0) spec.window_rope_theta = draw.one_of({0.0, 100.0});
  spec.nope_layer_step = draw.one_of<int64_t>({0, 0, 4});
  spec.nope_ends_step = draw.flip();
  if (draw.one_in(4)) spec.rope_scaling = models::LlamaRopeScaling{.factor = 4, .original_seq_len = 16};
}

void draw_latent_attention(Draw& draw, models::ModelSpec& spec) {
  spec.attention = models::Attention::kLatent;
  spec.q_lora_rank = draw.one_of<int64_t>({0, 12});
  spec.kv_lora_rank = 20;
  spec.qk_nope_head_dim = 4;
  spec.qk_rope_head_dim = 4;
}

void draw_experts(Draw& draw, models::ModelSpec& spec) {
  spec.moe = models::MoeSpec{.num_experts = 4, .top_k = 2, .hidden = 16, .layer_step = draw.one_of<int64_t>({1, 2})};
  if (spec.moe->layer_step == 1) spec.ffn_hidden = 0;
}

}  // namespace

models::ModelSpec random_options(uint64_t seed) {
  Draw draw(seed);
  models::ModelSpec spec;
  spec.name = "llama3";
  spec.flavor = absl::StrCat("options_", seed);
  spec.dim = 24;
  spec.n_layers = 4;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 136;
  spec.ffn_hidden = 32;
  spec.max_seq_len = 64;
  draw.one_in(8) ? draw_latent_attention(draw, spec) : draw_attention(draw, spec);
  if (draw.one_in(5)) draw_experts(draw, spec);
  spec.rope = draw.one_of({models::RopeStyle::kInterleaved, models::RopeStyle::kRotateHalf});
  spec.mask = draw.one_of({models::Mask::kCausal, models::Mask::kCausal, models::Mask::kBlockCausal});
  spec.norm_placement =
      draw.one_of({models::NormPlacement::kPre, models::NormPlacement::kPost, models::NormPlacement::kBoth});
  spec.norm_offset = draw.one_of({0.0, 1.0});
  if (!spec.moe && draw.flip()) spec.activation = models::Activation::kGeluTanh;
  spec.mlp_bias = spec.ffn_hidden > 0 && draw.flip();
  spec.embedding_scale = draw.one_of({1.0, 4.9});
  spec.residual_scale = draw.one_of({1.0, 0.4});
  spec.logit_divisor = draw.one_of({1.0, 3.0});
  spec.logit_softcap = draw.one_of({0.0, 5.0});
  spec.tied_embeddings = draw.flip();
  return spec;
}

std::string options_of(const models::ModelSpec& spec) {
  const nlohmann::json defaults = models::to_json(models::ModelSpec()), values = models::to_json(spec);
  std::string all;
  for (const auto& [name, value] : values.items()) {
    if (value != defaults[name] && name != "moe") absl::StrAppend(&all, name, "=", value.dump(), " ");
  }
  return spec.moe ? all + "with experts" : all;
}

}  // namespace titan::testing
