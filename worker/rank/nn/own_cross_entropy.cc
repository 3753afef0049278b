#include "worker/rank/nn/own_cross_entropy.h"

#include <ATen/Parallel.h>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {

SoftmaxFigures softmax_figures(const at::Tensor& logits, const at::Tensor& labels) {
  const auto column = [&] { return uninitialized({logits.size(0)}, logits.options().dtype(at::kFloat)); };
  SoftmaxFigures figures{column(), column(), column()};
  add_softmax_figures(figures, logits, labels, 0);
  return figures;
}

void add_softmax_figures(SoftmaxFigures& figures, const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
  const kernels::SoftmaxChunk args{.tokens = logits.size(0),
                                   .vocabulary = logits.size(1),
                                   .first_id = first,
                                   .logits = logits.const_data_ptr(),
                                   .stride = logits.stride(0),
                                   .labels = labels.const_data_ptr<int64_t>(),
                                   .first = first == 0,
                                   .maximum = figures.maximum.mutable_data_ptr<float>(),
                                   .sum = figures.sum.mutable_data_ptr<float>(),
                                   .label_logit = figures.label_logit.mutable_data_ptr<float>(),
                                   .threads = at::get_num_threads()};
  const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::Part::kLoss);
  took(device != nullptr ? device->run(args) : kernels::softmax_chunk(*kernels::chosen_level(), args));
}

void merge_over(const comm::Group& ranks, SoftmaxFigures& figures) {
  const at::Tensor maximum = figures.maximum.clone();
  ranks.all_reduce(maximum, c10d::ReduceOp::MAX).wait();
  figures.sum.mul_(figures.maximum.sub_(maximum).exp_());
  const at::Tensor terms = at::stack({figures.sum, figures.label_logit});
  ranks.all_reduce(terms).wait();
  figures = {maximum, terms[0], terms[1]};
}

at::Tensor loss_of(const at::Tensor& logits, const SoftmaxFigures& figures, const at::Tensor& labels) {
  const kernels::CrossEntropyLoss args{.tokens = labels.numel(),
                                       .labels = labels.const_data_ptr<int64_t>(),
                                       .ignored = kIgnoredLabel,
                                       .maximum = figures.maximum.const_data_ptr<float>(),
                                       .sum = figures.sum.const_data_ptr<float>(),
                                       .label_logit = figures.label_logit.const_data_ptr<float>()};
  const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::Part::kLoss);
  if (device == nullptr) return at::scalar_tensor(kernels::cross_entropy_loss(args), figures.sum.options());
  at::Tensor loss = uninitialized({}, figures.sum.options());
  took(device->run(args, loss.mutable_data_ptr<float>()));
  return loss;
}

void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& scale, int64_t first) {
  const at::Tensor factor = scale.to(at::kFloat);
  kernels::CrossEntropyGradient args{.tokens = logits.size(0),
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
                                     .threads = at::get_num_threads()};
  const auto* scale_at = factor.const_data_ptr<float>();
  if (const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::Part::kLoss)) {
    return took(device->run(args, scale_at));
  }
  args.scale = *scale_at;
  took(kernels::cross_entropy_gradient(*kernels::chosen_level(), args));
}

}  // namespace titan::nn
