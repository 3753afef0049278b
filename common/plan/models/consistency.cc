#include "common/plan/models/consistency.h"

#include "absl/strings/str_cat.h"

namespace titan::models {
namespace {

struct Number {
  const char* name;
  int64_t value;
};

std::string not_above_zero(std::initializer_list<Number> numbers) {
  for (const Number& number : numbers) {
    if (number.value <= 0) return absl::StrCat(number.name, ": ", number.value, " is not above 0");
  }
  return "";
}

std::string no_multiple(const Number& whole, const Number& part) {
  if (part.value > 0 && whole.value % part.value == 0) return "";
  return absl::StrCat(whole.name, ": ", whole.value, " is no multiple of ", part.name, ", ", part.value);
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

std::string inconsistency(const ModelSpec& spec) {
  std::string wrong = not_above_zero({{"dim", spec.dim},
                                      {"n_layers", spec.n_layers},
                                      {"vocab_size", spec.vocab_size},
                                      {"max_seq_len", spec.max_seq_len}});
  if (wrong.empty() && spec.n_heads != 0) wrong = of_attention(spec);
  if (wrong.empty() && spec.moe) wrong = of_experts(*spec.moe);
  return wrong;
}

}  // namespace titan::models
