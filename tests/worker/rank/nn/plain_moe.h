#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <string>

#include "worker/rank/nn/moe.h"

// An oracle for mixtures of experts in plain dense ATen: every expert computes every token, and a matrix of weights,
// with zeros for experts that a token did not choose, selects the results. It neither sorts nor groups, and uses no
// code of worker/rank/nn except its options.
namespace titan::testing {

using Weights = std::map<std::string, at::Tensor>;  // By name under "moe.".

struct PlainMoe {
  nn::MoeOptions options;
  Weights weights;
  at::Tensor bias;   // [experts]; undefined: no bias.
  at::Tensor given;  // int64 [n, top_k]: the choice to use; undefined: the best by these scores.

  // Returns x [n, in] times the transposed weight [out, in]: [n, out].
  static at::Tensor times(const at::Tensor& x, const at::Tensor& weight) { return at::matmul(x, weight.t()); }

  // Returns the result [n, dim] of expert `e` for x [n, dim].
  at::Tensor expert(const at::Tensor& x, int64_t e) const {
    const auto of = [&](const char* name) { return weights.at(std::string("experts.") + name)[e]; };
    if (options.swiglu_limit == 0) return times(at::silu(times(x, of("w1"))) * times(x, of("w3")), of("w2"));
    const at::Tensor wide = times(x, of("mlp1_weight")) + of("mlp1_bias");
    const at::Tensor even = at::arange(0, wide.size(1), 2), odd = even + 1;
    const at::Tensor gate = at::clamp_max(wide.index_select(1, even), options.swiglu_limit);
    const at::Tensor up = at::clamp(wide.index_select(1, odd), -options.swiglu_limit, options.swiglu_limit);
    return times((up + 1) * gate / (1 + at::exp(-1.702 * gate)), of("mlp2_weight")) + of("mlp2_bias");
  }

  // Returns [n, experts] from scores [n, experts]: 1 where a token chose the expert. Random numbers have no ties.
  at::Tensor chosen(const at::Tensor& scores) const {
    if (given.defined()) return at::zeros_like(scores.detach()).scatter_(1, given, 1);
    const nn::RouterOptions& router = options.router;
    at::Tensor preferred = (bias.defined() ? scores + bias : scores).detach().clone();
    const int64_t n = scores.size(0), experts = router.num_experts;
    at::Tensor result = at::zeros_like(preferred);
    for (int64_t token = 0; token < n; ++token) {
      at::Tensor row = preferred[token];
      if (router.num_groups > 0) {
        const int64_t size = experts / router.num_groups;
        at::Tensor of_group = at::empty({router.num_groups}, row.options());
        for (int64_t g = 0; g < router.num_groups; ++g) {
          of_group[g] = std::get<0>(row.narrow(0, g * size, size).sort(0, true)).narrow(0, 0, 2).sum();
        }
        const at::Tensor ranked = of_group.argsort(0, /*descending=*/true);
        for (int64_t place = router.limited_groups; place < router.num_groups; ++place) {
          row.narrow(0, ranked[place].item<int64_t>() * size, size).fill_(-1e30);
        }
      }
      result[token].index_fill_(0, row.argsort(0, /*descending=*/true).narrow(0, 0, router.top_k), 1);
    }
    return result;
  }

  at::Tensor scores(const at::Tensor& x) const {  // From x [n, dim]: [n, experts], unnormalised.
    at::Tensor logits = times(x, weights.at("router.gate.weight"));
    if (options.gate_bias) logits = logits + weights.at("router.gate.bias");
    if (!options.router.softmax) return 1 / (1 + at::exp(-logits));
    const at::Tensor powers = at::exp(logits - std::get<0>(logits.max(1, true)).detach());
    return powers / powers.sum(1, true);
  }

  // Returns how many tokens chose each expert: int64 [experts].
  at::Tensor counts(const at::Tensor& x) const { return chosen(scores(x)).sum(0).to(at::kLong); }

  at::Tensor forward(const at::Tensor& input) const {  // [..., dim]
    const at::Tensor x = input.reshape({-1, options.dim});
    const at::Tensor all = scores(x);
    at::Tensor gates = all * chosen(all);
    if (options.router.route_norm) gates = gates / gates.sum(1, true);
    gates = gates * options.router.route_scale;
    const at::Tensor picked = gates.detach().ne(0).to(x.scalar_type());
    at::Tensor sum = at::zeros_like(x);
    for (int64_t e = 0; e < options.router.num_experts; ++e) {
      const at::Tensor gate = gates.narrow(1, e, 1);
      sum = sum + (options.score_before_experts ? expert(x * gate, e) * picked.narrow(1, e, 1) : expert(x, e) * gate);
    }
    if (options.shared_hidden > 0) {
      const auto of = [&](const char* name) { return weights.at(std::string("shared_experts.") + name + ".weight"); };
      sum = sum + times(at::silu(times(x, of("w1"))) * times(x, of("w3")), of("w2"));
    }
    return sum.view(input.sizes());
  }
};

// Small forms of the models' mixtures.
struct MoeKind {
  const char* name;
  nn::MoeOptions options;
};
inline std::vector<MoeKind> moe_kinds() {
  nn::MoeOptions llama4{.router = {.num_experts = 8, .top_k = 1}, .dim = 12, .hidden = 8, .shared_hidden = 8};
  llama4.score_before_experts = true;
  nn::MoeOptions before = llama4;
  before.router.top_k = 3;
  before.shared_hidden = 0;
  const nn::MoeOptions deepseek{
      .router =
          {.num_experts = 8, .top_k = 3, .route_norm = true, .route_scale = 2.5, .num_groups = 4, .limited_groups = 2},
      .dim = 12,
      .hidden = 8,
      .shared_hidden = 16};
  const nn::MoeOptions qwen{
      .router = {.num_experts = 8, .top_k = 2, .softmax = true, .route_norm = true}, .dim = 12, .hidden = 8};
  nn::MoeOptions gpt_oss = qwen;
  gpt_oss.gate_bias = true;
  gpt_oss.swiglu_limit = 1.5;  // Low, so that both clamps act.
  return {{"top 1, score before, shared", llama4},
          {"top 3, score before", before},
          {"groups, norm, scale, shared", deepseek},
          {"softmax, norm", qwen},
          {"biases, clamped", gpt_oss}};
}

// Draw values of order 1, the same on every rank. `skewed` makes a bias that leaves some experts empty.
inline at::Tensor moe_value(const std::string& fqn, const std::vector<int64_t>& shape, at::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(fqn));
  return (at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)) * 0.5).to(type);
}
inline at::Tensor moe_bias(int64_t experts, bool skewed, at::ScalarType type) {
  at::Tensor bias = moe_value("expert_bias", {experts}, type) * 0.2;
  if (skewed) bias.narrow(0, experts / 2, experts / 2).sub_(3);  // Beyond the scores' range: never the best.
  return bias;
}

}  // namespace titan::testing
