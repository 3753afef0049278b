#include "tests/numerics/spec_changes.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <variant>

namespace titan::testing {
namespace {

using models::ModelSpec;
using Number = std::variant<int64_t*, double*>;

std::map<std::string, Number> numbers(ModelSpec& spec) {
  std::map<std::string, Number> all{{"dim", &spec.dim},
                                    {"n_layers", &spec.n_layers},
                                    {"n_heads", &spec.n_heads},
                                    {"n_kv_heads", &spec.n_kv_heads},
                                    {"head_dim", &spec.head_dim},
                                    {"v_head_dim", &spec.v_head_dim},
                                    {"vocab_size", &spec.vocab_size},
                                    {"ffn_hidden", &spec.ffn_hidden},
                                    {"sliding_window", &spec.sliding_window},
                                    {"attention_chunk", &spec.attention_chunk},
                                    {"query_temperature_floor", &spec.query_temperature_floor},
                                    {"q_lora_rank", &spec.q_lora_rank},
                                    {"kv_lora_rank", &spec.kv_lora_rank},
                                    {"qk_nope_head_dim", &spec.qk_nope_head_dim},
                                    {"qk_rope_head_dim", &spec.qk_rope_head_dim},
                                    {"swiglu_limit", &spec.swiglu_limit}};
  if (spec.rope_scaling) all["rope_scaling.original_seq_len"] = &spec.rope_scaling->original_seq_len;
  if (spec.yarn) {
    all["yarn.original_seq_len"] = &spec.yarn->original_seq_len;
    all["yarn.mscale"] = &spec.yarn->mscale;
  }
  if (spec.moe) {
    all["moe.num_experts"] = &spec.moe->num_experts;
    all["moe.num_shared_experts"] = &spec.moe->num_shared_experts;
    all["moe.top_k"] = &spec.moe->top_k;
    all["moe.hidden"] = &spec.moe->hidden;
    all["moe.num_expert_groups"] = &spec.moe->num_expert_groups;
    all["moe.num_limited_groups"] = &spec.moe->num_limited_groups;
    all["moe.first_layer"] = &spec.moe->first_layer;
  }
  return all;
}

}  // namespace

void change_spec(ModelSpec& spec, const nlohmann::json& changes) {
  std::map<std::string, Number> known = numbers(spec);
  for (const auto& [name, value] : changes.items()) {
    const auto number = known.find(name);
    if (number == known.end()) throw std::runtime_error("the spec of " + spec.name + " has no number " + name);
    std::visit([&value = value](auto* target) { *target = value; }, number->second);
  }
}

std::vector<Mistake> mistakes(const ModelSpec& spec, int64_t seq_len) {
  std::vector<Mistake> all;
  const auto add = [&](const std::string& what, const std::function<void(ModelSpec&)>& change) {
    all.push_back({what, spec});
    change(all.back().spec);
  };
  add("norm_eps a hundred times larger", [](ModelSpec& s) { s.norm_eps *= 100; });
  add("rope_theta doubled", [](ModelSpec& s) { s.rope_theta *= 2; });
  add("the other rotation", [](ModelSpec& s) {
    s.rope =
        s.rope == models::RopeStyle::kInterleaved ? models::RopeStyle::kRotateHalf : models::RopeStyle::kInterleaved;
  });
  if (spec.rope_scaling) add("no RoPE scaling", [](ModelSpec& s) { s.rope_scaling.reset(); });
  if (spec.yarn && (!spec.yarn->only_beyond_original || seq_len > spec.yarn->original_seq_len))
    add("no YaRN", [](ModelSpec& s) { s.yarn.reset(); });
  if (spec.mask == models::Mask::kBlockCausal)
    add("attention across documents", [](ModelSpec& s) { s.mask = models::Mask::kCausal; });
  if (spec.sliding_window > 0) add("window one longer", [](ModelSpec& s) { ++s.sliding_window; });
  if (spec.attention_chunk > 0) add("no chunks", [](ModelSpec& s) { s.attention_chunk = 0; });
  if (spec.nope_layer_step > 0) add("positions in all layers", [](ModelSpec& s) { s.nope_layer_step = 0; });
  if (spec.rotated_qk_norm) add("no norm of rotated heads", [](ModelSpec& s) { s.rotated_qk_norm = false; });
  if (spec.query_temperature_floor > 0)
    add("no query temperature", [](ModelSpec& s) { s.query_temperature_floor = 0; });
  if (spec.swiglu_limit > 0) add("activation clamped later", [](ModelSpec& s) { s.swiglu_limit *= 1.1; });
  if (!spec.moe) return all;
  add("route scale 1% larger", [](ModelSpec& s) { s.moe->route_scale *= 1.01; });
  if (spec.moe->top_k > 1)
    add("route norm the other way", [](ModelSpec& s) { s.moe->route_norm = !s.moe->route_norm; });
  add("the other scores",
      [](ModelSpec& s) { s.moe->score_func = s.moe->score_func == "softmax" ? "sigmoid" : "softmax"; });
  add("scores on the other side of the experts",
      [](ModelSpec& s) { s.moe->score_before_experts = !s.moe->score_before_experts; });
  if (spec.moe->num_expert_groups > 0) add("no group limit", [](ModelSpec& s) { s.moe->num_expert_groups = 0; });
  return all;
}

}  // namespace titan::testing
