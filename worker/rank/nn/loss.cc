#include "worker/rank/nn/loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/own_cross_entropy.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

struct OwnCrossEntropy : torch::autograd::Function<OwnCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& labels) {
    const at::Tensor rows = rows_of(logits), ids = labels.flatten().contiguous();
    ignored_labels(ids, rows.size(1));
    const SoftmaxFigures figures = softmax_figures(rows, ids);
    context->save_for_backward({logits, ids, figures.maximum, figures.sum});
    return loss_of(rows, figures, ids);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor gradient = at::empty(saved[0].sizes(), saved[0].options());
    write_logit_gradient(rows_of(gradient), rows_of(saved[0]), saved[1], saved[2], saved[3], gradients[0]);
    return {gradient, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels) {
  if (own_rows_take(logits, kernels::Part::kLoss)) return OwnCrossEntropy::apply(logits, labels);
  const at::Tensor rows = logits.flatten(0, 1);
  return at::cross_entropy_loss(rows.to(accumulate_type(rows.scalar_type())), labels.flatten(0, 1), /*weight=*/{},
                                at::Reduction::Sum, kIgnoredLabel);
}

at::Tensor ignored_labels(const at::Tensor& labels, int64_t vocabulary) {
  at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor known = labels.ge(0).bitwise_and_(labels.lt(vocabulary)).bitwise_or_(ignored);
  if (!known.is_meta()) at::_assert_async(known.all(), "a label is outside the vocabulary");
  return ignored;
}

at::Tensor count_valid(const at::Tensor& labels) { return labels.ne(kIgnoredLabel).sum(); }

}  // namespace titan::nn
