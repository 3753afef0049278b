#include "worker/nn/loss.h"

#include "worker/nn/layers.h"

namespace titan::nn {

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor rows = logits.flatten(0, 1);
  return at::cross_entropy_loss(rows.to(accumulate_type(rows.scalar_type())), labels.flatten(0, 1), /*weight=*/{},
                                at::Reduction::Sum, kIgnoredLabel);
}

at::Tensor count_valid(const at::Tensor& labels) { return labels.ne(kIgnoredLabel).sum(); }

}  // namespace titan::nn
