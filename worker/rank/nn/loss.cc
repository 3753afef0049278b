#include "worker/rank/nn/loss.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

struct OwnCrossEntropy : torch::autograd::Function<OwnCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& labels) {
    const at::Tensor rows = rows_of(logits), ids = labels.flatten().contiguous();
    ignored_labels(ids, rows.size(1));
    const SoftmaxStats figures = softmax_stats(rows, ids);
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
  if (can_use_row_kernels(logits, kernels::TrainingPart::kLoss)) return OwnCrossEntropy::apply(logits, labels);
  const at::Tensor rows = logits.flatten(0, 1);
  return at::cross_entropy_loss(rows.to(accumulate_type(rows.scalar_type())), labels.flatten(0, 1), /*weight=*/{},
                                at::Reduction::Sum, kIgnoreIndex);
}

at::Tensor ignored_labels(const at::Tensor& labels, int64_t vocabulary) {
  at::Tensor ignored = labels.eq(kIgnoreIndex);
  const at::Tensor known = labels.ge(0).bitwise_and_(labels.lt(vocabulary)).bitwise_or_(ignored);
  if (!known.is_meta()) at::_assert_async(known.all(), "a label is outside the vocabulary");
  return ignored;
}

at::Tensor count_valid(const at::Tensor& labels) { return labels.ne(kIgnoreIndex).sum(); }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls body(first row, rows of the weight) for each part of the vocabulary, in order.
template <typename Body>
void for_each_part(const at::Tensor& weight, int64_t columns, const Body& body) {
  for (int64_t first = 0; first < weight.size(0); first += columns)
    body(first, weight.narrow(0, first, std::min(columns, weight.size(0) - first)));
}

// For each label, its column counted from `first` and clamped to [0, count), and whether it is one of these columns.
struct Hits {
  at::Tensor columns, is_here;  // [rows, 1]
};
Hits hits(const at::Tensor& labels, int64_t first, int64_t count) {
  const at::Tensor local = labels.sub(first).unsqueeze_(1);
  at::Tensor is_here = local.ge(0).bitwise_and_(local.lt(count));
  return {local.clamp(0, count - 1), std::move(is_here)};
}

SoftmaxStats no_figures(const at::Tensor& rows) {
  const at::TensorOptions wide = rows.options().dtype(accumulate_type(rows.scalar_type()));
  return {.maximum = at::full({rows.size(0)}, -std::numeric_limits<double>::infinity(), wide),
          .sum = at::zeros({rows.size(0)}, wide),
          .label_logit = at::zeros({rows.size(0)}, wide)};
}

void add_figures(SoftmaxStats& figures, at::Tensor logits, const at::Tensor& labels, int64_t first) {
  const Hits hit = hits(labels, first, logits.size(1));
  logits = logits.to(figures.sum.scalar_type());
  figures.label_logit.add_(logits.gather(1, hit.columns).masked_fill_(hit.is_here.logical_not(), 0).squeeze(1));
  const at::Tensor maximum = at::maximum(figures.maximum, logits.amax(1));
  // Nothing was summed before the first part, and -infinity minus an equal maximum would be NaN.
  if (first > 0) figures.sum.mul_(figures.maximum.sub_(maximum).exp_());
  figures.sum.add_(logits.sub_(maximum.unsqueeze(1)).exp_().sum(1));
  figures.maximum = maximum;
}

// Writes (softmax - [column is the label]) * scale over the logits, or into a copy if their type differs.
at::Tensor logit_gradient(at::Tensor logits, const at::Tensor& labels, int64_t first, const SoftmaxStats& figures,
                          const at::Tensor& ignored, const at::Tensor& scale) {
  const at::ScalarType type = logits.scalar_type();
  const Hits hit = hits(labels, first, logits.size(1));
  logits = logits.to(figures.sum.scalar_type());
  const at::Tensor factor = (scale / figures.sum).masked_fill_(ignored, 0).unsqueeze(1);
  logits.sub_(figures.maximum.unsqueeze(1)).exp_().mul_(factor);
  logits.scatter_add_(1, hit.columns, hit.is_here.to(logits.scalar_type()).mul_(scale).neg_());
  return logits.to(type);
}

// Caps logits in place.
at::Tensor cap_in_place(at::Tensor logits, double cap) { return logits.div_(cap).tanh_().mul_(cap); }
// Returns gradient * (1 - (capped / cap)^2).
at::Tensor through_cap(const at::Tensor& gradient, const at::Tensor& capped, double cap) {
  return capped.div(cap).square_().neg_().add_(1).mul_(gradient);
}

struct SoftCapped : torch::autograd::Function<SoftCapped> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, double cap) {
    at::Tensor capped = logits.div(cap).tanh_().mul_(cap);
    context->save_for_backward({capped});
    context->saved_data["cap"] = cap;
    return capped;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {through_cap(gradients[0], context->get_saved_variables()[0], context->saved_data["cap"].toDouble()), {}};
  }
};

struct HeadCrossEntropy : torch::autograd::Function<HeadCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& labels, int64_t columns, const comm::Group* vocabulary, double softcap) {
    const bool split = vocabulary != nullptr && vocabulary->size() > 1;
    const int64_t ranks = split ? vocabulary->size() : 1, own = weight.size(0);
    const at::Tensor rows = rows_of(input), ids = labels.flatten(), ignored = ignored_labels(ids, own * ranks);
    // Column of each label in this rank's part. -1: another rank's. kIgnoreIndex: ignored.
    at::Tensor local = ids.sub(split ? vocabulary->rank() * own : 0);
    local.masked_fill_(local.lt(0).bitwise_or_(local.ge(own)), -1).masked_fill_(ignored, kIgnoreIndex);

    SoftmaxStats figures = no_figures(rows);
    for_each_part(weight, columns, [&](int64_t first, const at::Tensor& part) {
      at::Tensor logits = matmul_nt(rows, part);
      if (softcap > 0) logits = cap_in_place(std::move(logits), softcap);
      if (can_use_row_kernels(logits, kernels::TrainingPart::kLoss))
        return add_softmax_stats(figures, logits, local, first);
      add_figures(figures, std::move(logits), local, first);
    });
    if (split) all_reduce_stats(*vocabulary, figures);
    context->save_for_backward({input, weight, local, ignored, figures.maximum, figures.sum});
    context->saved_data["columns"] = columns;
    context->saved_data["softcap"] = softcap;
    return (figures.sum.log() - (figures.label_logit - figures.maximum)).masked_fill_(ignored, 0).sum();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &local = saved[2], &ignored = saved[3];
    const SoftmaxStats figures{.maximum = saved[4], .sum = saved[5], .label_logit = {}};
    const at::Tensor rows = rows_of(input).detach();
    const bool input_too = context->needs_input_grad(0), weight_too = context->needs_input_grad(1);
    at::Tensor input_gradient, weight_gradient;
    if (input_too) input_gradient = at::zeros(rows.sizes(), rows.options().dtype(figures.sum.scalar_type()));
    if (weight_too) weight_gradient = at::empty_like(weight);
    const double softcap = context->saved_data["softcap"].toDouble();
    for_each_part(weight.detach(), context->saved_data["columns"].toInt(), [&](int64_t first, const at::Tensor& part) {
      at::Tensor gradient = matmul_nt(rows, part), capped;
      if (softcap > 0) {
        gradient = cap_in_place(std::move(gradient), softcap);
        capped = gradient.clone();
      }
      if (can_use_row_kernels(gradient, kernels::TrainingPart::kLoss)) {
        write_logit_gradient(gradient, gradient, local, figures.maximum, figures.sum, gradients[0], first);
      } else {
        gradient = logit_gradient(std::move(gradient), local, first, figures, ignored, gradients[0]);
      }
      if (softcap > 0) gradient = through_cap(gradient, capped, softcap);
      if (input_too) input_gradient.add_(matmul_nn(gradient, part));
      if (weight_too) weight_gradient.narrow(0, first, part.size(0)).copy_(nn::weight_gradient(gradient, rows));
    });
    if (input_too) input_gradient = input_gradient.to(input.scalar_type()).view(input.sizes());
    return {std::move(input_gradient), std::move(weight_gradient), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor head_cross_entropy_sum(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                  int64_t columns, const comm::Group* vocabulary, double softcap) {
  return HeadCrossEntropy::apply(input, weight.weight, labels, columns, vocabulary, softcap);
}

at::Tensor soft_capped(const at::Tensor& logits, double cap) { return SoftCapped::apply(logits, cap); }

SoftmaxStats softmax_stats(const at::Tensor& logits, const at::Tensor& labels) {
  const auto column = [&] { return uninitialized({logits.size(0)}, logits.options().dtype(at::kFloat)); };
  SoftmaxStats figures{column(), column(), column()};
  add_softmax_stats(figures, logits, labels, 0);
  return figures;
}

void add_softmax_stats(SoftmaxStats& figures, const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
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
  const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::TrainingPart::kLoss);
  check_accepted(device != nullptr ? device->run(args) : kernels::softmax_chunk(*kernels::chosen_level(), args));
}

void all_reduce_stats(const comm::Group& ranks, SoftmaxStats& figures) {
  const at::Tensor maximum = figures.maximum.clone();
  ranks.all_reduce(maximum, c10d::ReduceOp::MAX).wait();
  figures.sum.mul_(figures.maximum.sub_(maximum).exp_());
  const at::Tensor terms = at::stack({figures.sum, figures.label_logit});
  ranks.all_reduce(terms).wait();
  figures = {maximum, terms[0], terms[1]};
}

at::Tensor loss_of(const at::Tensor& logits, const SoftmaxStats& figures, const at::Tensor& labels) {
  const kernels::CrossEntropyLoss args{.tokens = labels.numel(),
                                       .labels = labels.const_data_ptr<int64_t>(),
                                       .ignored = kIgnoreIndex,
                                       .maximum = figures.maximum.const_data_ptr<float>(),
                                       .sum = figures.sum.const_data_ptr<float>(),
                                       .label_logit = figures.label_logit.const_data_ptr<float>()};
  const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::TrainingPart::kLoss);
  if (device == nullptr) return at::scalar_tensor(kernels::cross_entropy_loss(args), figures.sum.options());
  at::Tensor loss = uninitialized({}, figures.sum.options());
  check_accepted(device->run(args, loss.mutable_data_ptr<float>()));
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
                                     .ignored = kIgnoreIndex,
                                     .maximum = maximum.const_data_ptr<float>(),
                                     .sum = sum.const_data_ptr<float>(),
                                     .threads = at::get_num_threads()};
  const auto* scale_at = factor.const_data_ptr<float>();
  if (const kernels::DeviceKernels* device = device_kernels_for(logits, kernels::TrainingPart::kLoss)) {
    return check_accepted(device->run(args, scale_at));
  }
  args.scale = *scale_at;
  check_accepted(kernels::cross_entropy_gradient(*kernels::chosen_level(), args));
}

}  // namespace titan::nn
