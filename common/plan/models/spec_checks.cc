#include "common/plan/models/spec_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/plan/models/decoder_options.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/number_checks.h"
#include "common/plan/models/qwen3_vl.h"
#include "common/plan/models/vision.h"

namespace titan::models {
namespace {

using nlohmann::json;

constexpr const char* kOfTraining[] = {"flavor", "max_seq_len", "mask",
                                       "eos_id", "depth_init",  "moe.load_balance_coeff"};
constexpr const char* kPositions[] = {"rope_theta", "window_rope_theta", "rope_scaling", "yarn"};

// Returns the defaults of the members of a part, "moe", or of the whole spec, "": an older version did not write all.
json defaults_of(const std::string& part) {
  if (part.empty()) return to_json(ModelSpec());
  ModelSpec full;
  full.flux.emplace();
  full.vision.emplace();
  full.qwen3_vl.emplace();
  full.rope_scaling.emplace();
  full.yarn.emplace();
  full.moe.emplace();
  return to_json(full).value(json::json_pointer(absl::StrCat("/", absl::StrReplaceAll(part, {{".", "/"}}))), json());
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

}  // namespace

std::vector<SpecDifference> differences(const json& stored, const ModelSpec& spec) {
  std::vector<SpecDifference> found;
  compare("", stored, to_json(spec), defaults_of(""), found);
  return found;
}

ModelSpec with_weights_numbers(const json& stored, ModelSpec spec) {
  json taken = json::object();
  for (const char* member : {"rope_theta", "window_rope_theta", "rope_scaling", "yarn", "rope", "norm_eps"}) {
    if (stored.contains(member)) taken[member] = stored[member];
  }
  ModelSpec result = spec;
  if (taken.contains("rope_scaling")) result.rope_scaling.reset();
  if (taken.contains("yarn")) result.yarn.reset();
  if (const auto flux = stored.find("flux"); spec.flux && flux != stored.end() && flux->contains("guidance_embed"))
    taken["flux"]["guidance_embed"] = (*flux)["guidance_embed"];
  return set_members(taken, result).ok() ? result : spec;  // A manifest with other types is refused by differences().
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

// Refuses sizes that no model has, whose lists and products would not fit into memory and 64 bits.
std::string beyond_sense(const ModelSpec& spec) {
  constexpr int64_t kMostLayers = 100'000, kMostExperts = 1 << 16, kMostWidth = 1 << 26;
  const auto above = [](const NamedNumber& number, int64_t most) {
    return number.value <= most ? "" : absl::StrCat(number.name, ": ", number.value, " is above ", most);
  };
  std::string wrong = above({"n_layers", spec.n_layers}, kMostLayers);
  if (wrong.empty() && spec.moe) wrong = above({"moe.num_experts", spec.moe->num_experts}, kMostExperts);
  if (wrong.empty() && spec.moe) wrong = above({"moe.hidden", spec.moe->hidden}, kMostWidth);
  for (const NamedNumber& width : std::initializer_list<NamedNumber>{{"dim", spec.dim},
                                                                     {"n_heads", spec.n_heads},
                                                                     {"head_dim", spec.head_dim},
                                                                     {"v_head_dim", spec.v_head_dim},
                                                                     {"vocab_size", spec.vocab_size},
                                                                     {"ffn_hidden", spec.ffn_hidden},
                                                                     {"q_lora_rank", spec.q_lora_rank},
                                                                     {"kv_lora_rank", spec.kv_lora_rank}}) {
    if (wrong.empty()) wrong = above(width, kMostWidth);
  }
  return wrong;
}

std::string of_feed_forward(const ModelSpec& spec) {
  if (spec.ffn_hidden > 0) return "";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (!spec.layer_has_experts(layer))
      return absl::StrCat("ffn_hidden: ", spec.ffn_hidden, " is not above 0, and layer ", layer, " has no experts");
  }
  return "";
}

std::string of_positions(const ModelSpec& spec) {
  const double theta = spec.rope_theta, eps = spec.norm_eps;
  if (!(theta > 0 && std::isfinite(theta))) return absl::StrCat("rope_theta: ", theta, " is not above 0");
  if (!(eps > 0 && std::isfinite(eps))) return absl::StrCat("norm_eps: ", eps, " is not above 0");
  return spec.nope_layer_step == 1 ? "nope_layer_step: 1 leaves no layer with positions" : "";
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
  if (wrong.empty()) wrong = beyond_sense(spec);
  if (wrong.empty() && spec.n_heads != 0) wrong = of_attention(spec);
  if (wrong.empty() && spec.n_heads != 0) wrong = of_positions(spec);
  if (wrong.empty() && spec.moe) wrong = of_experts(*spec.moe);
  if (wrong.empty() && spec.n_heads != 0) wrong = of_feed_forward(spec);
  if (wrong.empty()) wrong = wrong_option(spec);
  if (wrong.empty() && spec.vision) wrong = of_vision(spec);
  if (wrong.empty() && spec.qwen3_vl) wrong = of_qwen3_vl(spec);
  return wrong;
}

}  // namespace titan::models
