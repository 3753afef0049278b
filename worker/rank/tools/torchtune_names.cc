#include "worker/rank/tools/torchtune_names.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::tools {
namespace {

struct Name {
  const char *ours, *theirs;
};

// Behind "layers.N.".
constexpr Name kOfLayer[] = {
    {"attention.wq.weight", "attn.q_proj.weight"}, {"attention.wk.weight", "attn.k_proj.weight"},
    {"attention.wv.weight", "attn.v_proj.weight"}, {"attention.wo.weight", "attn.output_proj.weight"},
    {"feed_forward.w1.weight", "mlp.w1.weight"},   {"feed_forward.w2.weight", "mlp.w2.weight"},
    {"feed_forward.w3.weight", "mlp.w3.weight"},   {"attention_norm.weight", "sa_norm.scale"},
    {"ffn_norm.weight", "mlp_norm.scale"},
};

}  // namespace

bool are_torchtune_names(const std::set<std::string>& names) {
  return names.contains("tok_embeddings.weight") && names.contains("norm.scale");
}

absl::Status check_torchtune_has(const models::ModelSpec& spec) {
  if (spec.name == "llama3") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("torchtune has no ", spec.name, "; of Titan's families it has llama3"));
}

std::string torchtune_name(const std::string& fqn) {
  if (fqn == "norm.weight") return "norm.scale";
  if (!absl::StartsWith(fqn, "layers.")) return fqn;
  const size_t dot = fqn.find('.', sizeof "layers." - 1);
  for (const Name& name : kOfLayer) {
    if (dot != fqn.npos && fqn.compare(dot + 1, fqn.npos, name.ours) == 0) return fqn.substr(0, dot + 1) + name.theirs;
  }
  return fqn;
}

}  // namespace titan::tools
