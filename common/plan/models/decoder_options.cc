#include "common/plan/models/decoder_options.h"

#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace titan::models {
namespace {

struct NamedFactor {
  const char* name;
  double value;
};

std::string out_of_range(std::initializer_list<NamedFactor> factors, bool may_be_zero) {
  for (const NamedFactor& factor : factors) {
    const bool fits = std::isfinite(factor.value) && (factor.value > 0 || (may_be_zero && factor.value == 0));
    if (!fits)
      return absl::StrCat(factor.name, ": ", factor.value, may_be_zero ? " is not 0 or above" : " is not above 0");
  }
  return "";
}

std::string wrong_latent_option(const ModelSpec& spec) {
  const char* member = spec.qk_norm                  ? "qk_norm"
                       : spec.qk_norm_whole          ? "qk_norm_whole"
                       : spec.rotated_qk_norm        ? "rotated_qk_norm"
                       : spec.attention_bias         ? "attention_bias"
                       : spec.attention_sinks        ? "attention_sinks"
                       : spec.nope_layer_step != 0   ? "nope_layer_step"
                       : spec.attention_scale != 0   ? "attention_scale"
                       : spec.attention_softcap != 0 ? "attention_softcap"
                       : spec.window_rope_theta != 0 ? "window_rope_theta"
                       : spec.rotary_dim != 0        ? "rotary_dim"
                                                     : nullptr;
  return member == nullptr ? "" : absl::StrCat(member, ": latent attention has no such option");
}

std::string wrong_grouped_option(const ModelSpec& spec) {
  if (spec.qk_norm_whole && !spec.qk_norm) return "qk_norm_whole: it needs qk_norm";
  if (spec.rotary_dim < 0 || spec.rotary_dim % 2 != 0 || spec.rotary_dim > spec.head_dim) {
    return absl::StrCat("rotary_dim: ", spec.rotary_dim, " is not an even number from 0 to head_dim, ", spec.head_dim);
  }
  if (spec.window_rope_theta > 0 && spec.sliding_window == 0) return "window_rope_theta: it needs a sliding_window";
  return "";
}

std::string wrong_window(const ModelSpec& spec) {
  if (spec.sliding_window < 0) return absl::StrCat("sliding_window: ", spec.sliding_window, " is below 0");
  if (spec.window_step < 0) return absl::StrCat("window_step: ", spec.window_step, " is below 0");
  if (spec.window_first_layer < 0) return absl::StrCat("window_first_layer: ", spec.window_first_layer, " is below 0");
  return "";
}

std::string wrong_feed_forward(const ModelSpec& spec) {
  if (spec.activation != Activation::kSilu && spec.moe) return "activation: experts compute silu only";
  if (spec.mlp_bias && spec.ffn_hidden == 0) return "mlp_bias: no layer has a dense feed-forward";
  return "";
}

}  // namespace

std::string wrong_option(const ModelSpec& spec) {
  std::string wrong = out_of_range({{"attention_scale", spec.attention_scale},
                                    {"attention_softcap", spec.attention_softcap},
                                    {"window_rope_theta", spec.window_rope_theta},
                                    {"logit_softcap", spec.logit_softcap}},
                                   /*may_be_zero=*/true);
  if (wrong.empty()) {
    wrong = out_of_range({{"embedding_scale", spec.embedding_scale},
                          {"residual_scale", spec.residual_scale},
                          {"logit_divisor", spec.logit_divisor}},
                         /*may_be_zero=*/false);
  }
  if (wrong.empty() && spec.norm_offset != 0 && spec.norm_offset != 1)
    wrong = absl::StrCat("norm_offset: ", spec.norm_offset, " is neither 0 nor 1");
  if (wrong.empty()) wrong = wrong_window(spec);
  if (wrong.empty())
    wrong = spec.attention == Attention::kLatent ? wrong_latent_option(spec) : wrong_grouped_option(spec);
  return wrong.empty() ? wrong_feed_forward(spec) : wrong;
}

}  // namespace titan::models
