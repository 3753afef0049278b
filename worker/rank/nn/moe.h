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
// are chosen, but not their gate values.
struct RouterOptions {
  int64_t num_experts = 0;
  int64_t top_k = 1;
  bool softmax = false;     // If false, sigmoid.
  bool route_norm = false;  // Divides gate values by their sum (+ 1e-20).
  double route_scale = 1;   // Then multiplies them by this.
  int64_t num_groups = 0;   // 0: no group limit. Otherwise experts come only from the `limited_groups` best groups.
  int64_t limited_groups = 0;
  bool force_balance = false;  // Round robin, for measurements.
};

struct Routing {
  at::Tensor experts;  // int64 [tokens, top_k]
  at::Tensor scores;   // [tokens, top_k], at least fp32
  at::Tensor counts;   // int64 [num_experts]: tokens that chose each expert.
};

struct MoeOptions {
  RouterOptions router;
  int64_t dim = 0;
  int64_t hidden = 0;         // Hidden size of one expert.
  int64_t shared_hidden = 0;  // Hidden size of the shared experts' one feed-forward. 0: none.
  bool score_before_experts = false;
  bool gate_bias = false;
  double swiglu_limit = 0;  // Above 0: GPT-OSS's clamped activation, with fused gate and up projection and biases.
  // With swiglu_limit > 0, w1_init is mlp1's and w2_init is mlp2's.
  Init w1_init, w2_init, w3_init, gate_init, bias_init;
  Init shared_w1_init, shared_depth_init;
};

// Parameters of the routed experts, and their feed-forward for tokens sorted by expert.
class Experts {
 public:
  // `fqn` is for example "layers.1.moe.experts".
  Experts(const Declare& declare, const std::string& fqn, const MoeOptions& options);
  // Maps x [n, dim], sorted by local expert, to [n, dim]. If experts are biased() and the groups have no members, the
  // host reads the rows of each group. An expert may have no rows. Rows of no expert become zeros.
  at::Tensor forward(const at::Tensor& x, const RowGroups& groups) const;
  int64_t local_experts() const { return parameters.front()->shape.front(); }
  bool biased() const { return swiglu_limit_ > 0; }

  std::vector<Parameter*> parameters;  // {w1, w2, w3}, or {mlp1_weight, mlp1_bias, mlp2_weight, mlp2_bias}
  // Fraction of the last bias that this rank adds: 1 / ranks if `parallel` lets several ranks compute parts of one
  // expert. Each of them has its whole gradient.
  double partial_bias_factor = 1;

 private:
  double swiglu_limit_;
};

// A feed-forward of experts: routes, sorts by expert, computes and combines, alongside shared experts that see every
// token. Declares, in this order, experts, router.gate and shared_experts (as common/plan/models lists them).
class MixtureOfExperts {
 public:
  // Maps tokens [n, dim] and their routing to the weighted sum of their experts' outputs, [n, dim]. `parallel` sets an
  // exchange of tokens around in_order() and the experts. It must call `meanwhile` once, whose computation does not
  // depend on the exchange, so that a transfer can overlap it.
  using Dispatch = std::function<at::Tensor(const MixtureOfExperts& moe, const at::Tensor& tokens,
                                            const Routing& routing, const std::function<void()>& meanwhile)>;

  // `fqn` is for example "layers.1.moe". `expert_bias` is "layers.1.moe.expert_bias", at least fp32 [num_experts].
  // While it has no value, only the scores decide the choice.
  MixtureOfExperts(const Declare& declare, Buffer& expert_bias, const std::string& fqn, const MoeOptions& options);
  // [B, T, dim] -> [B, T, dim]. With `counting`, these tokens count in tokens_per_expert.
  at::Tensor forward(const at::Tensor& input, bool counting = true) const;
  Routing route(const at::Tensor& tokens) const;  // tokens [n, dim]
  // Passes tokens [n, dim] to `run`, one row per choice, in the order of their experts [n, choices], each below
  // `num_experts`: [n * choices, dim] in and out. Returns the sum of each token's rows, [n, dim]. Rows are weighted by
  // scores [n, choices], before `run` with score_before_experts, else after it.
  at::Tensor in_order(at::Tensor tokens, const at::Tensor& experts, const at::Tensor& scores, int64_t num_experts,
                      const std::function<at::Tensor(const at::Tensor& sorted)>& run) const;
  void force_balance() { options_.router.force_balance = true; }

  const std::string& fqn() const { return fqn_; }
  int64_t num_experts() const { return options_.router.num_experts; }  // Experts of all ranks.
  int64_t top_k() const { return options_.router.top_k; }

  Experts experts;
  Linear gate;
  std::optional<FeedForward> shared_experts;
  Seams seams;         // Around routed and shared experts together.
  Seams routed_seams;  // Around the router and the routed experts, on tokens [n, dim].
  Dispatch dispatch;   // Empty: all experts are on this rank.

  // int64 [num_experts] on the device: how many of this rank's tokens chose each expert since the last reset. Undefined
  // before the first counted pass.
  mutable at::Tensor tokens_per_expert;
  Buffer* expert_bias;

 private:
  // Dispatches tokens [n, dim] if all experts are on this rank.
  at::Tensor all_experts(const at::Tensor& tokens, const Routing& routing,
                         const std::function<void()>& meanwhile) const;

  MoeOptions options_;
  std::string fqn_;
};

// A block with a feed-forward that may be a mixture of experts. Code that balances and reports mixtures finds them by a
// cast to this type.
class HasExperts {
 public:
  virtual ~HasExperts() = default;
  virtual MixtureOfExperts* mixture() = 0;  // Null: the block has none.
};

}  // namespace titan::nn
