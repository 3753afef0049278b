#include "worker/nn/own_cross_entropy.h"

#include <ATen/Parallel.h>

#include "worker/kernels/cpu/cross_entropy.h"
#include "worker/nn/loss.h"
#include "worker/nn/own_kernels.h"

namespace titan::nn {

SoftmaxFigures softmax_figures(const at::Tensor& logits, const at::Tensor& labels) {
  const auto column = [&] { return uninitialized({logits.size(0)}, logits.options().dtype(at::kFloat)); };
  SoftmaxFigures figures{column(), column(), column()};
  add_softmax_figures(figures, logits, labels, 0);
  return figures;
}

void add_softmax_figures(SoftmaxFigures& figures, const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
  took(kernels::softmax_chunk(*kernels::chosen_level(), {.tokens = logits.size(0),
                                                         .vocabulary = logits.size(1),
                                                         .first_id = first,
                                                         .logits = logits.const_data_ptr(),
                                                         .stride = logits.stride(0),
                                                         .labels = labels.const_data_ptr<int64_t>(),
                                                         .first = first == 0,
                                                         .maximum = figures.maximum.mutable_data_ptr<float>(),
                                                         .sum = figures.sum.mutable_data_ptr<float>(),
                                                         .label_logit = figures.label_logit.mutable_data_ptr<float>(),
                                                         .threads = at::get_num_threads()}));
}

void merge_over(const comm::Group& ranks, SoftmaxFigures& figures) {
  const at::Tensor maximum = figures.maximum.clone();
  ranks.all_reduce(maximum, c10d::ReduceOp::MAX).wait();
  figures.sum.mul_(figures.maximum.sub_(maximum).exp_());
  const at::Tensor terms = at::stack({figures.sum, figures.label_logit});
  ranks.all_reduce(terms).wait();
  figures = {maximum, terms[0], terms[1]};
}

at::Tensor loss_of(const SoftmaxFigures& figures, const at::Tensor& labels) {
  const double loss = kernels::cross_entropy_loss({.tokens = labels.numel(),
                                                   .labels = labels.const_data_ptr<int64_t>(),
                                                   .ignored = kIgnoredLabel,
                                                   .maximum = figures.maximum.const_data_ptr<float>(),
                                                   .sum = figures.sum.const_data_ptr<float>(),
                                                   .label_logit = figures.label_logit.const_data_ptr<float>()});
  return at::scalar_tensor(loss, figures.sum.options());
}

void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& scale, int64_t first) {
  const at::Tensor factor = scale.to(at::kFloat);
  took(kernels::cross_entropy_gradient(*kernels::chosen_level(), {.tokens = logits.size(0),
                                                                  .vocabulary = logits.size(1),
                                                                  .first_id = first,
                                                                  .logits = logits.const_data_ptr(),
                                                                  .stride = logits.stride(0),
                                                                  .gradient = gradient.mutable_data_ptr(),
                                                                  .gradient_stride = gradient.stride(0),
                                                                  .labels = labels.const_data_ptr<int64_t>(),
                                                                  .ignored = kIgnoredLabel,
                                                                  .maximum = maximum.const_data_ptr<float>(),
                                                                  .sum = sum.const_data_ptr<float>(),
                                                                  .scale = *factor.const_data_ptr<float>(),
                                                                  .threads = at::get_num_threads()}));
}

}  // namespace titan::nn
