// Computes which results of a recomputed layer's first pass are saved.

#include <algorithm>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/numerics/mesh_table/rank_share.h"

namespace titan::testing {

using Kind = Call::Kind;

// Returns the layer's equations in order, up to the last one with a result that may be saved.
std::vector<Call> RankShare::all_calls(const std::string& layer, int64_t microbatch) const {
  std::vector<Call> all;
  const std::vector<Part>& parts = parts_of(layer);
  const bool scatters = tensor > 1 && sequence;
  const auto product = [&](const std::string& name, int64_t count) {
    const std::string fqn = absl::StrCat(layer, ".", name, ".weight");
    const auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& one) { return one.fqn == fqn; });
    if (part == parts.end()) return;
    all.push_back({.kind = Kind::kProduct, .fqn = fqn, .elements = count * part->shape[0]});
  };
  const auto scattered_product = [&](const std::string& name) {
    product(name, tokens);
    if (asynchronous) {
      all.back().scatters = true;
      all.back().elements = edge_tokens * spec.dim;
    } else if (scatters) {
      all.back().feeds_scatter = true;
      all.push_back({.kind = Kind::kScatter, .elements = edge_tokens * spec.dim});
    }
  };

  // If gathering the input is overlapped, all products that read it come first.
  product("attention.wq", tokens), product("attention.wq_a", tokens);
  if (asynchronous) product("attention.wkv_a", tokens);
  product("attention.wq_b", tokens);
  if (!asynchronous) product("attention.wkv_a", tokens);
  product("attention.wkv_b", tokens), product("attention.wk", tokens), product("attention.wv", tokens);
  all.push_back({.kind = Kind::kAttention, .elements = tokens * spec.n_heads / tensor * (spec.v_head_dim + 1)});
  scattered_product("attention.wo");

  if (!has_experts(layer)) {
    product("feed_forward.w1", tokens), product("feed_forward.w3", tokens);
    scattered_product("feed_forward.w2");
    return all;
  }
  product("moe.router.gate", routed_tokens);
  if (expert > 1) {
    all.push_back({.kind = Kind::kExchange, .integers = 2 * spec.moe->num_experts});  // Rows to send and receive.
    all.push_back({.kind = Kind::kExchange, .elements = received(layer, microbatch) * spec.dim});
  }
  if (spec.moe->num_shared_experts > 0) {
    product("moe.shared_experts.w1", tokens), product("moe.shared_experts.w3", tokens);
    if (apart) {
      scattered_product("moe.shared_experts.w2");
    } else {
      product("moe.shared_experts.w2", tokens);
    }
  }
  if (expert > 1) {
    all.push_back({.kind = Kind::kExchange, .elements = routed_tokens * spec.moe->top_k * spec.dim});
  }
  if (!apart && scatters) all.push_back({.kind = Kind::kScatter, .elements = edge_tokens * spec.dim});
  return all;
}

// torchtitan's policy: saves everything that is not a product, and every second product. Products with a bias or of the
// router's shape are neither saved nor counted.
void RankShare::choose_every_second(const std::string& layer, std::vector<Call>& calls) const {
  const std::vector<Part>& parts = parts_of(layer);
  const auto has = [&](const std::string& fqn) {
    return std::any_of(parts.begin(), parts.end(), [&](const Part& one) { return one.fqn == fqn; });
  };
  int count = 0;
  for (Call& call : calls) {
    if (call.kind != Kind::kProduct) {
      call.is_saved = true;
      continue;
    }
    const std::string module = call.fqn.substr(0, call.fqn.rfind('.'));
    const bool counts = !has(module + ".bias") && !absl::EndsWith(module, "router.gate");
    call.is_saved = call.scatters;
    if (counts && ++count % 2 == 1) call.is_saved = true;
  }
}

const std::vector<Call>& RankShare::calls(const std::string& layer, int64_t microbatch) const {
  const auto [known, is_new] = calls_.try_emplace({layer, microbatch});
  if (is_new) known->second = choose_calls(layer, microbatch);
  return known->second;
}

std::vector<Call> RankShare::choose_calls(const std::string& layer, int64_t microbatch) const {
  const auto& ac = job.config.activation_checkpoint;
  if (recomputed_.count(layer) == 0) return {};
  const bool by_operation = ac.mode == "selective" && ac.selective_ac_option == "op";
  if (!by_operation && ac.mode != "memory_budget") return {};
  std::vector<Call> all = all_calls(layer, microbatch);
  if (by_operation) {
    choose_every_second(layer, all);
  } else {
    // A budget weighs results that this rank can recompute alone or with a sum over ranks.
    const std::vector<bool>& taken = records[rank].planned.at(layer);
    size_t next = 0;
    for (Call& call : all) {
      if (call.feeds_scatter || call.kind == Kind::kExchange) continue;
      call.is_saved = taken.at(next++);
    }
    if (next != taken.size()) throw std::logic_error(layer + ": the plan has other items than the layer's equations");
  }
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i].feeds_scatter && all[i + 1].is_saved)
      all[i].is_saved = false;  // Only the next call reads it, and that result is saved.
  }
  return all;
}

int64_t RankShare::product_passes(const std::string& layer, const std::string& fqn) const {
  const std::vector<Call>& all = calls(layer, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].fqn == fqn) return all[i].is_saved || (all[i].feeds_scatter && all[i + 1].is_saved) ? 1 : 2;
  }
  return passes(layer);
}

int64_t RankShare::passes_of(const std::string& layer, Kind kind, size_t index) const {
  for (const Call& call : calls(layer, 0)) {
    const bool is_kind = kind == Kind::kScatter ? call.scatters || call.kind == kind : call.kind == kind;
    if (is_kind && index-- == 0) return call.is_saved ? 1 : 2;
  }
  return passes(layer);
}

int64_t RankShare::attention_passes(const std::string& layer) const { return passes_of(layer, Kind::kAttention, 0); }
int64_t RankShare::exchange_passes(const std::string& layer) const { return passes_of(layer, Kind::kExchange, 0); }
int64_t RankShare::scatter_passes(const std::string& layer, size_t index) const {
  return passes_of(layer, Kind::kScatter, index);
}

}  // namespace titan::testing
