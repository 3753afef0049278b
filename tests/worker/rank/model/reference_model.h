#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"

// Every model a second time, written out plainly in float64 from its published description: no layers, no fused
// operations, every expert on every token, every score of every pair of tokens. It is slow and independent.
namespace titan::testing {

using Weights = std::map<std::string, at::Tensor>;  // By parameter name; includes buffers ("layers.1.moe.expert_bias").

struct ReferenceBatch {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor documents;  // int64 [B, T]; undefined: one document.
};

// Returns logits [B, T, V]. `seq_len`: the longest sequence that the model was built for. `margin`: set to the smallest
// distance between the scores of a chosen expert (or group) and of the next one, over all tokens and layers.
at::Tensor reference_logits(const models::ModelSpec& spec, const Weights& weights, const ReferenceBatch& batch,
                            int64_t seq_len, double* margin = nullptr);

// Compute the parts of layer `layer`. x and results are [B, T, D], documents int64 [B, T].
at::Tensor reference_attention(const models::ModelSpec& spec, const Weights& weights, int64_t layer,
                               const at::Tensor& x, const at::Tensor& documents, int64_t seq_len);
at::Tensor reference_experts(const models::ModelSpec& spec, const Weights& weights, int64_t layer, const at::Tensor& x,
                             double* margin = nullptr);
at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor reference_feed_forward(const models::ModelSpec& spec, const Weights& weights, const std::string& fqn,
                                  const at::Tensor& x);
at::Tensor reference_swiglu(const Weights& weights, const std::string& fqn, const at::Tensor& x);

}  // namespace titan::testing
