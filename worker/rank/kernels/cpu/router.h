#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Token-choice routing. Of each token's scores, softmax or sigmoid of its logits, the top_k largest after adding a bias
// choose the experts (the bias changes the choice, not the score); of equal ones the lower expert, and what is no
// number is largest. With groups (DeepSeek-V3, arXiv 2412.19437) only experts of the `limited_groups` groups count
// whose two best sum highest.
namespace titan::kernels {

constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostChoices = 64;

// Declined: more than kMostExperts, more choices or groups than kMostChoices, groups that do not divide the experts or
// have fewer than two, and fewer experts to choose from than choices.
struct RouterForward {
  int64_t tokens = 0, experts = 0, top_k = 1;
  Dtype type = Dtype::kF32;
  const void* logits = nullptr;  // [tokens, experts]
  int64_t stride = 0;
  const float* bias = nullptr;  // [experts]; null: none.
  bool softmax = false;         // Else sigmoid.
  bool normalized = false;      // A token's scores are divided by their sum + 1e-20,
  float scale = 1;              // and multiplied by this.
  int64_t groups = 0, limited_groups = 0;
  int64_t* chosen = nullptr;  // [tokens, top_k], best first.
  float* scores = nullptr;    // [tokens, top_k], within 1e-6 of the truth, relative.
  int64_t* counts = nullptr;  // [experts]: how many of these tokens chose each. Null: not wanted.
  int threads = 1;
};
bool router_forward(Level level, const RouterForward& args);

// From the scores' gradients to the logits'; the choice has none. Within 2e-6 |scale| times the token's largest
// |dscores| over its sum of scores, beside the rounding.
struct RouterBackward {
  int64_t tokens = 0, experts = 0, top_k = 1;
  Dtype type = Dtype::kF32;  // Of logits and dlogits.
  const void* logits = nullptr;
  int64_t stride = 0;
  bool softmax = false, normalized = false;
  float scale = 1;
  const int64_t* chosen = nullptr;
  const float* dscores = nullptr;  // [tokens, top_k]
  void* dlogits = nullptr;         // May be the logits.
  int64_t dlogits_stride = 0;
  int threads = 1;
};
bool router_backward(Level level, const RouterBackward& args);

}  // namespace titan::kernels
