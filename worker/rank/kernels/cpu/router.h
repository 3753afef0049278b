#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Token-choice routing. A token's scores are the softmax or sigmoid of its logits. The top_k largest after a bias is
// added choose the experts. The bias changes the choice but not the score. The lower of equal experts wins, and NaN is
// the largest. With groups (DeepSeek-V3, arXiv 2412.19437), only experts of `limited_groups` groups can be chosen:
// those with the highest sums of their two best scores.
namespace titan::kernels {

constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxChoices = 64;

// Declines more than kMaxExperts experts, more than kMaxChoices choices or groups, groups that do not divide the
// experts or have fewer than two, and fewer experts to choose from than choices.
struct RouterForward {
  int64_t tokens = 0, experts = 0, top_k = 1;
  Dtype type = Dtype::kF32;
  const void* logits = nullptr;  // [tokens, experts]
  int64_t stride = 0;
  const float* bias = nullptr;  // [experts]. Null: none.
  bool softmax = false;         // If false, sigmoid.
  bool normalized = false;      // Divides a token's scores by their sum + 1e-20.
  float scale = 1;              // Then multiplies them by this.
  int64_t groups = 0, limited_groups = 0;
  int64_t* chosen = nullptr;  // [tokens, top_k], best first.
  float* scores = nullptr;    // [tokens, top_k], with a relative error of at most 1e-6.
  int64_t* counts = nullptr;  // [experts]: tokens that chose each expert. Null: not wanted.
  int threads = 1;
};
bool router_forward(Level level, const RouterForward& args);

// Computes the logits' gradients from the scores'. The choice has none. The error is at most 2e-6 |scale| times the
// token's largest |dscores| over its sum of scores, plus the rounding.
struct RouterBackward {
  int64_t tokens = 0, experts = 0, top_k = 1;
  Dtype type = Dtype::kF32;      // Type of logits and dlogits.
  const void* logits = nullptr;  // [tokens, experts]
  int64_t stride = 0;
  bool softmax = false, normalized = false;
  float scale = 1;
  const int64_t* chosen = nullptr;  // [tokens, top_k]
  const float* dscores = nullptr;   // [tokens, top_k]
  void* dlogits = nullptr;          // [tokens, experts]. May be the logits.
  int64_t dlogits_stride = 0;
  int threads = 1;
};
bool router_backward(Level level, const RouterBackward& args);

}  // namespace titan::kernels
