#include "tests/worker/rank/model/reference_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace titan::testing {
namespace {

// Scores of every expert [tokens, experts], and the values by which experts are chosen, in the same shape.
struct Scores {
  at::Tensor value, choice;
};

Scores scores_of(const models::ModelSpec& spec, const Weights& weights, const std::string& fqn, const at::Tensor& x) {
  at::Tensor logits = at::matmul(x, weights.at(fqn + ".router.gate.weight").t());
  if (spec.moe->gate_bias) logits = logits + weights.at(fqn + ".router.gate.bias");
  const at::Tensor value = spec.moe->score_func == "softmax" ? logits.softmax(1) : logits.sigmoid();
  return {value, (value + weights.at(fqn + ".expert_bias")).detach()};
}

// Returns the experts of one token, best first, then those that lost although their group was open. Lowers `margin` to
// the distance between the last open group and the first closed one.
std::vector<int64_t> ranked(const models::MoeSpec& moe, const at::Tensor& choice, double* margin) {
  const double* score = choice.const_data_ptr<double>();
  std::vector<int64_t> open(static_cast<size_t>(moe.num_experts));
  std::iota(open.begin(), open.end(), 0);
  if (moe.num_expert_groups > 0) {
    const int64_t size = moe.num_experts / moe.num_expert_groups;
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < moe.num_expert_groups; ++g) {
      std::vector<double> members(score + g * size, score + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      groups.push_back({moe.score_func == "softmax" ? members[0] : members[0] + members[1], g});
    }
    std::sort(groups.rbegin(), groups.rend());
    open.clear();
    const size_t limit = static_cast<size_t>(moe.num_limited_groups);
    if (margin != nullptr && limit < groups.size()) {
      *margin = std::min(*margin, groups[limit - 1].first - groups[limit].first);
    }
    for (int64_t g = 0; g < moe.num_limited_groups; ++g) {
      for (int64_t e = 0; e < size; ++e) open.push_back(groups[static_cast<size_t>(g)].second * size + e);
    }
  }
  std::sort(open.begin(), open.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
  return open;
}

at::Tensor expert(const models::ModelSpec& spec, const Weights& weights, const std::string& fqn, int64_t e,
                  const at::Tensor& x) {
  const auto w = [&](const char* name) { return weights.at(fqn + ".experts." + name)[e]; };
  if (spec.swiglu_limit == 0) {
    return at::matmul(at::silu(at::matmul(x, w("w1").t())) * at::matmul(x, w("w3").t()), w("w2").t());
  }
  const at::Tensor h = (at::matmul(x, w("mlp1_weight").t()) + w("mlp1_bias")).unflatten(1, {-1, 2});
  const at::Tensor gate = h.select(2, 0).clamp_max(spec.swiglu_limit);
  const at::Tensor up = h.select(2, 1).clamp(-spec.swiglu_limit, spec.swiglu_limit);
  return at::matmul(gate * (gate * 1.702).sigmoid() * (up + 1), w("mlp2_weight").t()) + w("mlp2_bias");
}

std::string moe_fqn(int64_t layer) { return "layers." + std::to_string(layer) + ".moe"; }

}  // namespace

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight;
}

at::Tensor reference_feed_forward(const models::ModelSpec& spec, const Weights& weights, const std::string& fqn,
                                  const at::Tensor& x) {
  const auto project = [&](const at::Tensor& in, const char* name) {
    const at::Tensor y = at::matmul(in, weights.at(fqn + name + ".weight").t());
    return spec.mlp_bias ? y + weights.at(fqn + name + ".bias") : y;
  };
  const at::Tensor gate = project(x, ".w1"), linear = project(x, ".w3");
  if (spec.activation == models::Activation::kSilu) return project(gate * gate.sigmoid() * linear, ".w2");
  const double slope = std::sqrt(2 / std::acos(-1.0));
  const at::Tensor bend = (slope * (gate + 0.044715 * gate * gate * gate)).tanh();
  return project(0.5 * gate * (1 + bend) * linear, ".w2");
}

at::Tensor reference_swiglu(const Weights& weights, const std::string& fqn, const at::Tensor& x) {
  const auto w = [&](const char* name) { return weights.at(fqn + name).t(); };
  return at::matmul(at::silu(at::matmul(x, w(".w1.weight"))) * at::matmul(x, w(".w3.weight")), w(".w2.weight"));
}

at::Tensor reference_experts(const models::ModelSpec& spec, const Weights& weights, int64_t layer,
                             const at::Tensor& input, double* margin) {
  const models::MoeSpec& moe = *spec.moe;
  const std::string fqn = moe_fqn(layer);
  const at::Tensor x = input.flatten(0, 1);
  const Scores scores = scores_of(spec, weights, fqn, x);
  at::Tensor chosen = at::zeros_like(scores.choice);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const std::vector<int64_t> order = ranked(moe, scores.choice[row], margin);
    const size_t k = static_cast<size_t>(moe.top_k);
    for (size_t i = 0; i < k; ++i) chosen[row][order[i]] = 1;
    if (margin == nullptr || k == order.size()) continue;
    *margin = std::min(*margin, (scores.choice[row][order[k - 1]] - scores.choice[row][order[k]]).item<double>());
  }
  at::Tensor share = scores.value * chosen;
  if (moe.route_norm) share = share / (share.sum(1, true) + 1e-20);
  share = share * moe.route_scale;
  at::Tensor sum = at::zeros_like(x);
  for (int64_t e = 0; e < moe.num_experts; ++e) {
    const at::Tensor mine = share.select(1, e).unsqueeze(1), member = chosen.select(1, e).unsqueeze(1);
    sum = sum + (moe.score_before_experts ? expert(spec, weights, fqn, e, x * mine) * member
                                          : expert(spec, weights, fqn, e, x) * mine);
  }
  if (moe.num_shared_experts > 0) sum = sum + reference_swiglu(weights, fqn + ".shared_experts", x);
  return sum.view(input.sizes());
}

at::Tensor reference_logits(const models::ModelSpec& spec, const Weights& weights, const ReferenceBatch& batch,
                            int64_t seq_len, double* margin) {
  if (margin != nullptr) *margin = std::numeric_limits<double>::infinity();
  at::Tensor x = weights.at("tok_embeddings.weight").index({batch.tokens}) * spec.embedding_scale;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string fqn = "layers." + std::to_string(layer);
    // Norms that a placement does not have return their input.
    const auto norm = [&](const at::Tensor& values, const char* name) {
      const auto weight = weights.find(fqn + name);
      if (weight == weights.end()) return values;
      return reference_norm(values, weight->second + spec.norm_offset, spec.norm_eps);
    };
    const at::Tensor in = norm(x, ".attention_norm.weight");
    const at::Tensor mixed = reference_attention(spec, weights, layer, in, batch.documents, seq_len);
    x = x + spec.residual_scale * norm(mixed, ".attention_post_norm.weight");
    const at::Tensor mid = norm(x, ".ffn_norm.weight");
    const bool experts = spec.moe && layer >= spec.moe->first_layer && (layer + 1) % spec.moe->layer_step == 0;
    const at::Tensor fed = experts ? reference_experts(spec, weights, layer, mid, margin)
                                   : reference_feed_forward(spec, weights, fqn + ".feed_forward", mid);
    x = x + spec.residual_scale * norm(fed, ".ffn_post_norm.weight");
  }
  x = reference_norm(x, weights.at("norm.weight") + spec.norm_offset, spec.norm_eps);
  const char* const head = spec.tied_embeddings ? "tok_embeddings.weight" : "output.weight";
  const at::Tensor logits = at::matmul(x, weights.at(head).t()) / spec.logit_divisor;
  return spec.logit_softcap > 0 ? spec.logit_softcap * (logits / spec.logit_softcap).tanh() : logits;
}

}  // namespace titan::testing
