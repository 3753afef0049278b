#include "worker/rank/checkpoint/formats/meta/meta_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::checkpoint {
namespace {

constexpr const char* kUnusedEnds[] = {"rope.freqs", "freqs_cis", "global_gate_stats_3E", "running_gate_stats_3E",
                                       "expert_activation_DE"};
constexpr const char* kVision[] = {"vision_embeddings.", "vision_projection."};

// A row of a table: names after "layers.N.", and the cut.
struct MetaRow {
  const char *fqn, *name;
  MetaCut cut = MetaCut::kRows;
  bool transposed = false;
};

constexpr MetaRow kMetaLayer[] = {
    {"attention_norm.weight", "attention_norm.weight", MetaCut::kNone},
    {"ffn_norm.weight", "ffn_norm.weight", MetaCut::kNone},
    {"attention.wq.weight", "attention.wq.weight"},
    {"attention.wk.weight", "attention.wk.weight"},
    {"attention.wv.weight", "attention.wv.weight"},
    {"attention.wo.weight", "attention.wo.weight", MetaCut::kColumns},
    {"feed_forward.w1.weight", "feed_forward.w1.weight"},
    {"feed_forward.w2.weight", "feed_forward.w2.weight", MetaCut::kColumns},
    {"feed_forward.w3.weight", "feed_forward.w3.weight"},
};

constexpr MetaRow kMetaLayer4[] = {
    {"attention_norm.weight", "attention.wqkv.layer_norm_weight", MetaCut::kNone},
    {"ffn_norm.weight", "feed_forward.norm.weight", MetaCut::kNone},
    {"ffn_norm.weight", "feed_forward.mlp.layer_norm_weight", MetaCut::kNone},
    {"feed_forward.w2.weight", "feed_forward.mlp.fc2_weight", MetaCut::kColumns},
    {"moe.router.gate.weight", "feed_forward.router_DE", MetaCut::kNone, true},
    {"moe.shared_experts.w1.weight", "feed_forward.w_in_shared_FD.weight"},
    {"moe.shared_experts.w2.weight", "feed_forward.w_out_shared_DF.weight", MetaCut::kColumns},
    {"moe.shared_experts.w3.weight", "feed_forward.w_swiglu_FD.weight"},
    {"moe.experts.w1", "feed_forward.experts.moe_w_in_eD_F", MetaCut::kColumns, true},
    {"moe.experts.w2", "feed_forward.experts.moe_w_out_eF_D", MetaCut::kRows, true},
    {"moe.experts.w3", "feed_forward.experts.moe_w_swiglu_eD_F", MetaCut::kColumns, true},
};

// Adds the places of Llama 4's fused projections.
void add_fused(const models::ModelSpec& spec, const std::string& layer, const std::string& rest,
               std::vector<MetaPlace>& places) {
  const int64_t queries = spec.n_heads * spec.head_dim, keys = spec.n_kv_heads * spec.head_dim;
  const auto add = [&](const char* fqn, const char* name, int64_t before, int64_t after) {
    if (rest == fqn) places.push_back({.name = layer + name, .rows_before = before, .rows_after = after});
  };
  add("attention.wq.weight", "attention.wqkv.weight", 0, 2 * keys);
  add("attention.wk.weight", "attention.wqkv.weight", queries, keys);
  add("attention.wv.weight", "attention.wqkv.weight", queries + keys, 0);
  add("feed_forward.w1.weight", "feed_forward.mlp.fc1_weight", 0, spec.ffn_hidden);
  add("feed_forward.w3.weight", "feed_forward.mlp.fc1_weight", spec.ffn_hidden, 0);
}

}  // namespace

std::vector<MetaPlace> meta_places(const models::ModelSpec& spec, const std::string& fqn) {
  if (fqn == "tok_embeddings.weight") return {{.name = fqn, .cut = MetaCut::kEither}};
  if (fqn == "norm.weight") return {{.name = fqn, .cut = MetaCut::kNone}};
  if (!absl::StartsWith(fqn, "layers.")) return {{.name = fqn}};
  const size_t dot = fqn.find('.', sizeof "layers." - 1);
  const std::string layer = fqn.substr(0, dot + 1), rest = fqn.substr(dot + 1);
  std::vector<MetaPlace> places;
  const auto add = [&](const MetaRow& row) {
    if (rest == row.fqn) places.push_back({.name = layer + row.name, .cut = row.cut, .transposed = row.transposed});
  };
  for (const MetaRow& row : kMetaLayer) add(row);
  if (rest == "attention.wk.weight" || rest == "attention.wv.weight") places.back().repeats_heads = true;
  if (spec.name != "llama4") return places;
  for (const MetaRow& row : kMetaLayer4) add(row);
  add_fused(spec, layer, rest, places);
  return places;
}

bool is_object_in_meta(const std::string& name) { return absl::EndsWith(name, "_extra_state"); }

bool is_unused_in_meta(const models::ModelSpec& spec, const std::string& name) {
  const auto ends = [&](const char* end) { return absl::EndsWith(name, end); };
  const auto begins = [&](const char* begin) { return absl::StartsWith(name, begin); };
  if (is_object_in_meta(name) || std::any_of(std::begin(kUnusedEnds), std::end(kUnusedEnds), ends)) return true;
  return spec.name == "llama4" && std::any_of(std::begin(kVision), std::end(kVision), begins);
}

}  // namespace titan::checkpoint
