#include "worker/rank/kernels/cpu/cross_entropy.h"

#include <cmath>

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const SoftmaxChunk&) { return true; }
bool accepted(const CrossEntropyGradient&) { return true; }

}  // namespace

TITAN_ROW_OP(softmax_chunk, SoftmaxChunk);
TITAN_ROW_OP(cross_entropy_gradient, CrossEntropyGradient);

double cross_entropy_loss(const CrossEntropyLoss& a) {
  double loss = 0;
  for (int64_t token = 0; token < a.tokens; ++token) {
    if (a.labels[token] == a.ignored) continue;
    loss += std::log(static_cast<double>(a.sum[token])) + a.maximum[token] - a.label_logit[token];
  }
  return loss;
}

}  // namespace titan::kernels
