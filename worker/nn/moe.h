#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/nn/feed_forward.h"
#include "worker/nn/layers.h"

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
  Experts(const Declare& declare, const std::string& fqn, const MoeOptions& options);
  // x [n, dim] sorted by local expert, counts[e] rows each (on the CPU): [n, dim].
  at::Tensor forward(const at::Tensor& x, const std::vector<int64_t>& counts) const;
  int64_t local_experts() const;

  std::vector<Parameter*> parameters;  // {w1, w2, w3}, or {mlp1_weight, mlp1_bias, mlp2_weight, mlp2_bias}
  double partial_bias_factor = 1;      // 1 / ranks when `parallel` lets several ranks compute parts of one expert.

 private:
  double swiglu_limit_;
};

// A feed-forward of experts: route, sort by expert, compute, combine, beside shared experts that see every token.
// Declares, in this order: experts, router.gate, shared_experts (as common/models lists them), and the buffer
// "moe.expert_bias".
class MixtureOfExperts {
 public:
  // From tokens sorted by global expert, and how many each has, to the experts' outputs in the same order.
  // `parallel` replaces it by an exchange of tokens around the same call.
  using Dispatch =
      std::function<at::Tensor(const at::Tensor& sorted, const at::Tensor& counts, const Experts& experts)>;

  // `fqn`: "layers.1.moe".
  MixtureOfExperts(const Declare& declare, Buffer& expert_bias, const std::string& fqn, const MoeOptions& options);
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]
  Routing route(const at::Tensor& tokens) const;      // [n, dim]

  Experts experts;
  Linear gate;
  std::optional<FeedForward> shared_experts;
  Seams seams;         // Around routed and shared experts together.
  Seams routed_seams;  // Around router and experts alone.
  Dispatch dispatch;   // Empty: all experts are here.

  // Tokens per expert since the last reset, int64 [num_experts] on the CPU; a block that is run again for its backward
  // pass must not count twice, so counting is switched.
  at::Tensor tokens_per_expert;
  bool counting = true;
  Buffer* expert_bias;  // At least fp32 [num_experts].

 private:
  MoeOptions options_;
};

}  // namespace titan::nn
