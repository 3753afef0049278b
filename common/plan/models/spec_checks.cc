#include "common/plan/models/spec_checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/number_checks.h"
#include "common/plan/models/qwen3_vl.h"
#include "common/plan/models/vision.h"

namespace titan::models {
namespace {

using nlohmann::json;

constexpr const char* kOfTraining[] = {"flavor", "max_seq_len", "mask",
                                       "eos_id", "depth_init",  "moe.load_balance_coeff"};
constexpr const char* kPositions[] = {"rope_theta", "rope_scaling", "yarn"};

json numbers(const LlamaRopeScaling& scaling) {
  return {{"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_seq_len", scaling.original_seq_len}};
}

json numbers(const YarnScaling& yarn) {
  return {{"factor", yarn.factor},
          {"beta_fast", yarn.beta_fast},
          {"beta_slow", yarn.beta_slow},
          {"original_seq_len", yarn.original_seq_len},
          {"mscale", yarn.mscale},
          {"only_beyond_original", yarn.only_beyond_original},
          {"scales_cos_sin", yarn.scales_cos_sin}};
}

json numbers(const MoeSpec& moe) {
  return {{"num_experts", moe.num_experts},
          {"num_shared_experts", moe.num_shared_experts},
          {"top_k", moe.top_k},
          {"hidden", moe.hidden},
          {"score_func", moe.score_func},
          {"route_norm", moe.route_norm},
          {"route_scale", moe.route_scale},
          {"gate_bias", moe.gate_bias},
          {"score_before_experts", moe.score_before_experts},
          {"num_expert_groups", moe.num_expert_groups},
          {"num_limited_groups", moe.num_limited_groups},
          {"load_balance_coeff", moe.load_balance_coeff},
          {"first_layer", moe.first_layer},
          {"layer_step", moe.layer_step}};
}

json numbers(const FluxSpec& flux) {
  return {{"n_double_blocks", flux.n_double_blocks},
          {"n_single_blocks", flux.n_single_blocks},
          {"mlp_ratio", flux.mlp_ratio},
          {"in_channels", flux.in_channels},
          {"txt_width", flux.txt_width},
          {"vec_width", flux.vec_width},
          {"time_channels", flux.time_channels},
          {"axes_dim", flux.axes_dim},
          {"guidance_embed", flux.guidance_embed}};
}

json numbers(const VisionSpec& vision) {
  return {{"dim", vision.dim},
          {"ffn_hidden", vision.ffn_hidden},
          {"n_layers", vision.n_layers},
          {"n_heads", vision.n_heads},
          {"channels", vision.channels},
          {"patch_size", vision.patch_size},
          {"position_side", vision.position_side},
          {"norm_eps", vision.norm_eps},
          {"out_dim", vision.out_dim}};
}

json numbers(const Qwen3VlVisionSpec& vision) {
  return {{"dim", vision.dim},
          {"ffn_hidden", vision.ffn_hidden},
          {"n_layers", vision.n_layers},
          {"n_heads", vision.n_heads},
          {"channels", vision.channels},
          {"patch_size", vision.patch_size},
          {"temporal_patch_size", vision.temporal_patch_size},
          {"merge", vision.merge},
          {"position_side", vision.position_side},
          {"out_dim", vision.out_dim},
          {"deepstack_layers", vision.deepstack_layers}};
}

json numbers(const Qwen3VlSpec& spec) {
  return {{"vision", numbers(spec.vision)},
          {"mrope_section", spec.mrope_section},
          {"image_token", spec.image_token},
          {"video_token", spec.video_token},
          {"vision_start_token", spec.vision_start_token},
          {"vision_end_token", spec.vision_end_token}};
}

json numbers(const OtherModel& other) { return {{"blocks", other.blocks}, {"parameters", other.parameters}}; }

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? numbers(*value) : json();
}

// Returns the defaults of the members of `part`, for those that an older version did not write.
json defaults_of(const std::string& part) {
  if (part == "moe") return numbers(MoeSpec{});
  if (part == "yarn") return numbers(YarnScaling{});
  if (part == "rope_scaling") return numbers(LlamaRopeScaling{});
  return models::to_json(ModelSpec{});
}

bool among(const std::string& name, const auto& list) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* one) { return name == one; });
}

void compare(const std::string& prefix, const json& there, const json& here, const json& defaults,
             std::vector<SpecDifference>& found) {
  for (const auto& [key, value] : here.items()) {
    const std::string name = absl::StrCat(prefix, key);
    if (among(name, kOfTraining)) continue;
    const json other = there.contains(key) ? there[key] : defaults.value(key, json());
    if (other.is_object() && value.is_object()) {
      compare(absl::StrCat(name, "."), other, value, defaults_of(name), found);
    } else if (other != value) {
      const bool positions = among(name.substr(0, name.find('.')), kPositions);
      found.push_back({name, other.dump(), value.dump(), positions});
    }
  }
}

LlamaRopeScaling llama_scaling(const json& stored) {
  const LlamaRopeScaling usual;
  return {.factor = stored.value("factor", usual.factor),
          .low_freq_factor = stored.value("low_freq_factor", usual.low_freq_factor),
          .high_freq_factor = stored.value("high_freq_factor", usual.high_freq_factor),
          .original_seq_len = stored.value("original_seq_len", usual.original_seq_len)};
}

YarnScaling yarn_scaling(const json& stored) {
  const YarnScaling usual;
  return {.factor = stored.value("factor", usual.factor),
          .beta_fast = stored.value("beta_fast", usual.beta_fast),
          .beta_slow = stored.value("beta_slow", usual.beta_slow),
          .original_seq_len = stored.value("original_seq_len", usual.original_seq_len),
          .mscale = stored.value("mscale", usual.mscale),
          .only_beyond_original = stored.value("only_beyond_original", usual.only_beyond_original),
          .scales_cos_sin = stored.value("scales_cos_sin", usual.scales_cos_sin)};
}

}  // namespace

json to_json(const ModelSpec& spec) {
  return {{"name", spec.name},
          {"flavor", spec.flavor},
          {"flux", or_null(spec.flux)},
          {"other", or_null(spec.other)},
          {"vision", or_null(spec.vision)},
          {"qwen3_vl", or_null(spec.qwen3_vl)},
          {"dim", spec.dim},
          {"n_layers", spec.n_layers},
          {"n_heads", spec.n_heads},
          {"n_kv_heads", spec.n_kv_heads},
          {"head_dim", spec.head_dim},
          {"v_head_dim", spec.v_head_dim},
          {"vocab_size", spec.vocab_size},
          {"ffn_hidden", spec.ffn_hidden},
          {"max_seq_len", spec.max_seq_len},
          {"norm_eps", spec.norm_eps},
          {"depth_init", spec.depth_init},
          {"eos_id", spec.eos_id},
          {"tied_embeddings", spec.tied_embeddings},
          {"attention", spec.attention == Attention::kLatent ? "latent" : "grouped"},
          {"mask", spec.mask == Mask::kBlockCausal ? "block_causal" : "causal"},
          {"qk_norm", spec.qk_norm},
          {"attention_bias", spec.attention_bias},
          {"attention_sinks", spec.attention_sinks},
          {"sliding_window", spec.sliding_window},
          {"nope_layer_step", spec.nope_layer_step},
          {"attention_chunk", spec.attention_chunk},
          {"nope_ends_step", spec.nope_ends_step},
          {"query_temperature_floor", spec.query_temperature_floor},
          {"query_temperature_scale", spec.query_temperature_scale},
          {"rotated_qk_norm", spec.rotated_qk_norm},
          {"q_lora_rank", spec.q_lora_rank},
          {"kv_lora_rank", spec.kv_lora_rank},
          {"qk_nope_head_dim", spec.qk_nope_head_dim},
          {"qk_rope_head_dim", spec.qk_rope_head_dim},
          {"rope", spec.rope == RopeStyle::kRotateHalf ? "rotate_half" : "interleaved"},
          {"rope_theta", spec.rope_theta},
          {"rope_scaling", or_null(spec.rope_scaling)},
          {"yarn", or_null(spec.yarn)},
          {"swiglu_limit", spec.swiglu_limit},
          {"moe", or_null(spec.moe)}};
}

std::vector<SpecDifference> differences(const json& stored, const ModelSpec& spec) {
  std::vector<SpecDifference> found;
  compare("", stored, to_json(spec), defaults_of(""), found);
  return found;
}

ModelSpec with_weights_numbers(const json& stored, ModelSpec spec) {
  spec.rope_theta = stored.value("rope_theta", spec.rope_theta);
  spec.norm_eps = stored.value("norm_eps", spec.norm_eps);
  if (stored.contains("rope"))
    spec.rope = stored["rope"] == "rotate_half" ? RopeStyle::kRotateHalf : RopeStyle::kInterleaved;
  if (const auto scaling = stored.find("rope_scaling"); scaling != stored.end()) {
    spec.rope_scaling = scaling->is_object() ? std::optional(llama_scaling(*scaling)) : std::nullopt;
  }
  if (const auto yarn = stored.find("yarn"); yarn != stored.end())
    spec.yarn = yarn->is_object() ? std::optional(yarn_scaling(*yarn)) : std::nullopt;
  if (const auto flux = stored.find("flux"); spec.flux && flux != stored.end() && flux->is_object())
    spec.flux->guidance_embed = flux->value("guidance_embed", spec.flux->guidance_embed);
  return spec;
}

std::string label(const json& stored) {
  const auto text = [&stored](const char* member) {
    const auto found = stored.find(member);
    return found != stored.end() && found->is_string() ? found->get<std::string>() : "?";
  };
  return absl::StrCat(text("name"), " ", text("flavor"));
}

namespace {

std::string no_multiple(const NamedNumber& whole, const NamedNumber& part) {
  if (part.value > 0 && whole.value % part.value == 0) return "";
  return absl::StrCat(whole.name, ": ", whole.value, " is not a multiple of ", part.name, ", ", part.value);
}

std::string of_attention(const ModelSpec& spec) {
  std::string wrong = not_above_zero({{"head_dim", spec.head_dim}, {"v_head_dim", spec.v_head_dim}});
  if (wrong.empty()) wrong = no_multiple({"n_heads", spec.n_heads}, {"n_kv_heads", spec.n_kv_heads});
  if (!wrong.empty() || spec.attention != Attention::kLatent) return wrong;
  if (spec.kv_lora_rank <= 0) return absl::StrCat("kv_lora_rank: ", spec.kv_lora_rank, " is not above 0");
  if (spec.head_dim == spec.qk_nope_head_dim + spec.qk_rope_head_dim) return "";
  return absl::StrCat("head_dim: ", spec.head_dim, " is not qk_nope_head_dim + qk_rope_head_dim, ",
                      spec.qk_nope_head_dim, " + ", spec.qk_rope_head_dim);
}

std::string of_experts(const MoeSpec& moe) {
  std::string wrong = not_above_zero({{"moe.num_experts", moe.num_experts},
                                      {"moe.top_k", moe.top_k},
                                      {"moe.hidden", moe.hidden},
                                      {"moe.layer_step", moe.layer_step}});
  if (!wrong.empty()) return wrong;
  if (moe.top_k > moe.num_experts) {
    return absl::StrCat("moe.top_k: ", moe.top_k, " is more than moe.num_experts, ", moe.num_experts);
  }
  if (moe.score_func != "sigmoid" && moe.score_func != "softmax") {
    return absl::StrCat("moe.score_func: \"", moe.score_func, "\" is neither sigmoid nor softmax");
  }
  if (moe.num_expert_groups == 0) return "";
  wrong = no_multiple({"moe.num_experts", moe.num_experts}, {"moe.num_expert_groups", moe.num_expert_groups});
  if (!wrong.empty()) return wrong;
  if (moe.num_limited_groups > 0 && moe.num_limited_groups <= moe.num_expert_groups) return "";
  return absl::StrCat("moe.num_limited_groups: ", moe.num_limited_groups, " is not from 1 to moe.num_expert_groups, ",
                      moe.num_expert_groups);
}

}  // namespace

namespace {

std::string of_vision(const ModelSpec& spec) {
  std::string wrong = inconsistency(*spec.vision);
  if (wrong.empty() && spec.vision->out_dim != spec.dim) {
    wrong = absl::StrCat("out_dim: ", spec.vision->out_dim, " is not the width of the language model, dim ", spec.dim);
  }
  return wrong.empty() ? "" : absl::StrCat("vision.", wrong);
}

std::string of_qwen3_vl(const ModelSpec& spec) {
  if (spec.vision) return "vision: a model has one vision tower, and qwen3_vl has its own";
  const std::string wrong = inconsistency(spec, *spec.qwen3_vl);
  return wrong.empty() ? "" : absl::StrCat("qwen3_vl: ", wrong);
}

}  // namespace

std::string inconsistency(const ModelSpec& spec) {
  if (spec.flux) return std::string(check(*spec.flux).message());
  if (spec.other) {
    if (spec.other->blocks.size() < 2) return "other.blocks: a model has at least two blocks";
    return not_above_zero({{"dim", spec.dim}});
  }
  std::string wrong = not_above_zero({{"dim", spec.dim},
                                      {"n_layers", spec.n_layers},
                                      {"vocab_size", spec.vocab_size},
                                      {"max_seq_len", spec.max_seq_len}});
  if (wrong.empty() && spec.n_heads != 0) wrong = of_attention(spec);
  if (wrong.empty() && spec.moe) wrong = of_experts(*spec.moe);
  if (wrong.empty() && spec.vision) wrong = of_vision(spec);
  if (wrong.empty() && spec.qwen3_vl) wrong = of_qwen3_vl(spec);
  return wrong;
}

}  // namespace titan::models
