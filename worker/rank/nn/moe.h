#pragma once

// A mixture of experts routes tokens, sorts them by expert, computes the experts' feed-forwards and combines the
// results.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// Token-choice router: scores = sigmoid or softmax of a linear gate, in at least fp32. The bias changes which experts
// are chosen, never how much they count.
struct RouterOptions {
  int64_t num_experts = 0;
  int64_t top_k = 1;
  bool softmax = false;     // Else sigmoid.
  bool route_norm = false;  // Gate values are divided by their sum (+ 1e-20).
  double route_scale = 1;   // And multiplied by this.
  int64_t num_groups = 0;   // 0: no group limit. Else experts come from the `limited_groups` best groups only.
  int64_t limited_groups = 0;
  bool force_balance = false;  // Round robin, for measurements.
};

struct Routing {
  at::Tensor experts;  // int64 [tokens, top_k]
  at::Tensor scores;   // [tokens, top_k], at least fp32
  at::Tensor counts;   // int64 [num_experts]: how many of these tokens chose each
};

struct MoeOptions {
  RouterOptions router;
  int64_t dim = 0;
  int64_t hidden = 0;         // Of one expert.
  int64_t shared_hidden = 0;  // Of the shared experts' one feed-forward; 0: none.
  bool score_before_experts = false;
  bool gate_bias = false;
  double swiglu_limit = 0;  // Above 0: GPT-OSS's clamped activation, fused gate and up projection, biases.
  Init w1_init, w2_init, w3_init, gate_init, bias_init;  // swiglu_limit > 0: w1_init is mlp1's, w2_init mlp2's.
  Init shared_w1_init, shared_depth_init;
};

// The routed experts' parameters and their product, for tokens sorted by expert.
class Experts {
 public:
  // `fqn`: "layers.1.moe.experts".
  Experts(const Declare& declare, const std::string& fqn, const MoeOptions& options);
  // x [n, dim] sorted by local expert, in groups with members where experts are biased(): [n, dim]. An expert may have
  // no rows; rows of no expert become zeros.
  at::Tensor forward(const at::Tensor& x, const RowGroups& groups) const;
  int64_t local_experts() const { return parameters.front()->shape.front(); }
  bool biased() const { return swiglu_limit_ > 0; }

  std::vector<Parameter*> parameters;  // {w1, w2, w3}, or {mlp1_weight, mlp1_bias, mlp2_weight, mlp2_bias}
  // The share of the last bias that this rank adds: 1 / ranks when `parallel` lets several ranks compute parts of one
  // expert. Its gradient is whole on each of them.
  double partial_bias_factor = 1;

 private:
  double swiglu_limit_;
};

// A feed-forward of experts: route, sort by expert, compute, combine, beside shared experts that see every token.
// Declares, in this order: experts, router.gate, shared_experts (as common/plan/models lists them).
class MixtureOfExperts {
 public:
  // From tokens [n, dim] and where they go to the weighted sum of their experts' outputs, [n, dim]. `parallel` sets an
  // exchange of tokens around in_order() and the experts; what `meanwhile` computes does not depend on it, so that a
  // transfer can overlap it. Must call it once.
  using Dispatch = std::function<at::Tensor(const MixtureOfExperts& moe, const at::Tensor& tokens,
                                            const Routing& routing, const std::function<void()>& meanwhile)>;

  // `fqn`: "layers.1.moe". `expert_bias`: "layers.1.moe.expert_bias", at least fp32 [num_experts]; while it has no
  // value, scores alone choose.
  MixtureOfExperts(const Declare& declare, Buffer& expert_bias, const std::string& fqn, const MoeOptions& options);
  // [B, T, dim] -> [B, T, dim]. `counting`: these tokens count towards tokens_per_expert.
  at::Tensor forward(const at::Tensor& input, bool counting = true) const;
  Routing route(const at::Tensor& tokens) const;  // [n, dim]
  // Takes tokens [n, dim], one row for each choice, to `run` in the order of their experts [n, choices], each below
  // `num_experts`, and adds up what came of them, weighted by `scores` [n, choices]: [n, dim].
  at::Tensor in_order(at::Tensor tokens, const at::Tensor& experts, const at::Tensor& scores, int64_t num_experts,
                      const std::function<at::Tensor(const at::Tensor& sorted)>& run) const;
  void force_balance() { options_.router.force_balance = true; }

  const std::string& fqn() const { return fqn_; }
  int64_t num_experts() const { return options_.router.num_experts; }  // Of all ranks.
  int64_t top_k() const { return options_.router.top_k; }

  Experts experts;
  Linear gate;
  std::optional<FeedForward> shared_experts;
  Seams seams;         // Around routed and shared experts together.
  Seams routed_seams;  // Around router and experts alone, on tokens [n, dim].
  Dispatch dispatch;   // Empty: all experts are here.

  // How many of this rank's tokens chose each expert since the last reset: int64 [num_experts] on the device; undefined
  // before the first.
  mutable at::Tensor tokens_per_expert;
  Buffer* expert_bias;

 private:
  // All experts are here.
  at::Tensor all_experts(const at::Tensor& tokens, const Routing& routing,
                         const std::function<void()>& meanwhile) const;

  MoeOptions options_;
  std::string fqn_;
};

// A block whose feed-forward may be a mixture of experts; the runtime finds those that it balances and reports by it.
class HasExperts {
 public:
  virtual ~HasExperts() = default;
  virtual MixtureOfExperts* mixture() = 0;  // Null: this one has none.
};

}  // namespace titan::nn
