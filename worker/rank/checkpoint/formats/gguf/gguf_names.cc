#include "worker/rank/checkpoint/formats/gguf/gguf_names.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/models/spec_json.h"

namespace titan::checkpoint::gguf {
namespace {

const std::map<std::string, std::string>& architectures() {
  static const std::map<std::string, std::string> of_model_type = {
      {"llama", "llama"},           {"qwen3", "qwen3"},           {"qwen3_moe", "qwen3moe"},
      {"deepseek_v2", "deepseek2"}, {"deepseek_v3", "deepseek2"}, {"gpt_oss", "gpt-oss"}};
  return of_model_type;
}

struct Name {
  const char *ours, *theirs;
  Part part = Part::kWhole;
};

constexpr Name kOfModel[] = {
    {"tok_embeddings.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"output.weight", "output.weight"},
};

// After "layers.N." and "blk.N.".
constexpr Name kOfLayer[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"attention.wq.weight", "attn_q.weight"},
    {"attention.wk.weight", "attn_k.weight"},
    {"attention.wv.weight", "attn_v.weight"},
    {"attention.wo.weight", "attn_output.weight"},
    {"attention.wq.bias", "attn_q.bias"},
    {"attention.wk.bias", "attn_k.bias"},
    {"attention.wv.bias", "attn_v.bias"},
    {"attention.wo.bias", "attn_output.bias"},
    {"attention.sinks", "attn_sinks.weight"},
    {"attention.wq_a.weight", "attn_q_a.weight"},
    {"attention.wq_b.weight", "attn_q_b.weight"},
    {"attention.wkv_a.weight", "attn_kv_a_mqa.weight"},
    {"attention.kv_norm.weight", "attn_kv_a_norm.weight"},
    {"attention.wkv_b.weight", "attn_k_b.weight", Part::kKeyHeads},
    {"attention.wkv_b.weight", "attn_v_b.weight", Part::kValueHeads},
    {"attention.k_norm.weight", "attn_k_norm.weight"},
    {"feed_forward.w1.weight", "ffn_gate.weight"},
    {"feed_forward.w2.weight", "ffn_down.weight"},
    {"feed_forward.w3.weight", "ffn_up.weight"},
    {"feed_forward.w1.bias", "ffn_gate.bias"},
    {"feed_forward.w2.bias", "ffn_down.bias"},
    {"feed_forward.w3.bias", "ffn_up.bias"},
    {"moe.router.gate.weight", "ffn_gate_inp.weight"},
    {"moe.router.gate.bias", "ffn_gate_inp.bias"},
    {"moe.experts.w1", "ffn_gate_exps.weight"},
    {"moe.experts.w2", "ffn_down_exps.weight"},
    {"moe.experts.w3", "ffn_up_exps.weight"},
    {"moe.experts.mlp1_weight", "ffn_gate_exps.weight", Part::kEvenRows},
    {"moe.experts.mlp1_weight", "ffn_up_exps.weight", Part::kOddRows},
    {"moe.experts.mlp1_bias", "ffn_gate_exps.bias", Part::kEvenRows},
    {"moe.experts.mlp1_bias", "ffn_up_exps.bias", Part::kOddRows},
    {"moe.experts.mlp2_weight", "ffn_down_exps.weight"},
    {"moe.experts.mlp2_bias", "ffn_down_exps.bias"},
    {"moe.shared_experts.w1.weight", "ffn_gate_shexp.weight"},
    {"moe.shared_experts.w2.weight", "ffn_down_shexp.weight"},
    {"moe.shared_experts.w3.weight", "ffn_up_shexp.weight"},
};

// Options of decoders for which no exported architecture has a key, except sliding windows of gpt-oss and the biases of
// llama.
constexpr const char* kWithoutKey[] = {
    "qk_norm_whole",     "attention_scale", "attention_softcap",  "sliding_window", "window_step",  "nope_layer_step",
    "window_rope_theta", "rotary_dim",      "norm_placement",     "norm_offset",    "activation",   "mlp_bias",
    "embedding_scale",   "residual_scale",  "window_first_layer", "logit_divisor",  "logit_softcap"};

// Names that depend on the architecture. An empty name: it has no place for the parameter.
const char* special_name(const nlohmann::json& config, const std::string& architecture, const std::string& ours) {
  const bool deepseek = architecture == "deepseek2";
  if (ours == "ffn_norm.weight") return architecture == "gpt-oss" ? "post_attention_norm.weight" : "ffn_norm.weight";
  if (ours == "attention.q_norm.weight") return deepseek ? "attn_q_a_norm.weight" : "attn_q_norm.weight";
  if (ours == "moe.expert_bias") return config.value("model_type", "") == "deepseek_v3" ? "exp_probs_b.bias" : "";
  return nullptr;
}

Source cut_heads(const nlohmann::json& config, Source source, const std::vector<int64_t>& shape) {
  const int64_t heads = config["num_attention_heads"], keys = config["qk_nope_head_dim"], values = config["v_head_dim"];
  source.rows_per_index = keys + values;
  source.shape = source.part == Part::kKeyHeads ? std::vector<int64_t>{heads, shape[1], keys}
                                                : std::vector<int64_t>{heads, values, shape[1]};
  return source;
}

Source source_of(const nlohmann::json& config, std::string name, const std::string& fqn, Part part,
                 const std::vector<int64_t>& shape) {
  Source source{.name = std::move(name), .fqn = fqn, .part = part, .shape = shape};
  if (part == Part::kKeyHeads || part == Part::kValueHeads) return cut_heads(config, std::move(source), shape);
  if (part != Part::kWhole) source.shape[1] /= 2;
  return source;
}

absl::Status check_norm_of_scores(const nlohmann::json& config, const std::string& architecture) {
  if (architecture != "qwen3moe" || config.value("norm_topk_prob", false)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "--format gguf: llama.cpp normalizes the scores of qwen3moe's experts, but this model does not");
}

}  // namespace

absl::StatusOr<std::string> architecture_of(const nlohmann::json& config) {
  const std::string type = config.is_object() ? config.value("model_type", "") : "";
  const auto found = architectures().find(type);
  if (found == architectures().end()) {
    std::vector<std::string> known;
    for (const auto& [name, architecture] : architectures()) known.push_back(name);
    return absl::FailedPreconditionError(absl::StrCat("--format gguf: models of type ", type.empty() ? "unknown" : type,
                                                      " are not supported; use one of ", absl::StrJoin(known, ", "),
                                                      ", or --format hf"));
  }
  TITAN_RETURN_IF_ERROR(check_norm_of_scores(config, found->second));
  if (!config.value("rope_interleave", true)) {
    return absl::FailedPreconditionError(
        "--format gguf: llama.cpp rotates adjacent pairs of deepseek2's channels, but this model rotates halves");
  }
  return found->second;
}

absl::Status check_options(const nlohmann::json& model, const std::string& architecture) {
  if (!model.is_object()) return absl::OkStatus();  // Older than the record of the model's numbers.
  const nlohmann::json defaults = models::to_json(models::ModelSpec());
  const bool windows = model.value("sliding_window", 0) > 0;
  for (const std::string member : kWithoutKey) {
    if (model.value(member, defaults[member]) == defaults[member]) continue;
    if (absl::StartsWith(member, "window_") && !windows) continue;
    if (member == "sliding_window" && architecture == "gpt-oss") continue;
    if (member == "mlp_bias" && architecture == "llama") continue;
    return absl::FailedPreconditionError(absl::StrCat("--format gguf: the model sets ", member, ", which llama.cpp's ",
                                                      architecture, " does not have; use --format hf"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Source>> sources_of(const nlohmann::json& config, const std::string& architecture,
                                               const std::string& fqn, const std::vector<int64_t>& shape) {
  for (const Name& name : kOfModel) {
    if (fqn == name.ours) return std::vector<Source>{source_of(config, name.theirs, fqn, name.part, shape)};
  }
  constexpr size_t kBegin = sizeof "layers." - 1;
  const size_t dot = absl::StartsWith(fqn, "layers.") ? fqn.find('.', kBegin) : std::string::npos;
  std::vector<Source> sources;
  if (dot != std::string::npos) {
    const std::string ours = fqn.substr(dot + 1), block = absl::StrCat("blk.", fqn.substr(kBegin, dot + 1 - kBegin));
    if (const char* special = special_name(config, architecture, ours)) {
      if (*special != '\0') sources.push_back(source_of(config, block + special, fqn, Part::kWhole, shape));
      return sources;
    }
    for (const Name& name : kOfLayer) {
      if (ours == name.ours) sources.push_back(source_of(config, block + name.theirs, fqn, name.part, shape));
    }
  }
  if (!sources.empty()) return sources;
  return absl::FailedPreconditionError(
      absl::StrCat("--format gguf: ", architecture, " has no tensor for the parameter ", fqn));
}

at::Tensor take(const Source& source, const at::Tensor& rows) {
  const int64_t count = rows.size(0) / source.rows_per_index;
  switch (source.part) {
    case Part::kWhole:
      return rows;
    case Part::kEvenRows:
    case Part::kOddRows:
      return rows.slice(1, source.part == Part::kOddRows ? 1 : 0, rows.size(1), 2).contiguous();
    case Part::kKeyHeads:
      return rows.view({count, source.rows_per_index, -1}).narrow(1, 0, source.shape[2]).transpose(1, 2).contiguous();
    case Part::kValueHeads:
      return rows.view({count, source.rows_per_index, -1})
          .narrow(1, source.rows_per_index - source.shape[1], source.shape[1])
          .contiguous();
  }
  return rows;
}

}  // namespace titan::checkpoint::gguf
