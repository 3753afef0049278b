#include "worker/rank/parallel/tensor_vocabulary.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/own_cross_entropy.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// embedding_dense_backward passes over this index, so that no gradient of another rank's token is masked or copied.
constexpr int64_t kNotHere = -1;

// Each id as a row of [first, first + rows), or kNotHere.
at::Tensor local_rows(const at::Tensor& ids, int64_t first, int64_t rows) {
  const at::Tensor local = ids - first;
  return local.masked_fill(local.lt(0).bitwise_or_(local.ge(rows)), kNotHere);
}

struct OwnRows : torch::autograd::Function<OwnRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens,
                            int64_t first) {
    const at::Tensor local = local_rows(tokens, first, weight.size(0));
    context->save_for_backward({local});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, local.clamp_min(0)).masked_fill_(local.eq(kNotHere).unsqueeze(-1), 0);
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const at::Tensor local = context->get_saved_variables()[0];
    return {at::embedding_dense_backward(gradients[0], local, context->saved_data["rows"].toInt(), kNotHere,
                                         /*scale_grad_by_freq=*/false),
            {},
            {}};
  }
};

// Calls body(first, count) for groups of rows of a [rows, columns] matrix, so that the wide copies that softmax needs
// stay small beside the logits.
template <typename Body>
void for_row_chunks(const at::Tensor& matrix, Body&& body) {
  constexpr int64_t kElements = int64_t{1} << 22;
  const int64_t step = std::max<int64_t>(1, kElements / std::max<int64_t>(1, matrix.size(1)));
  for (int64_t first = 0; first < matrix.size(0); first += step) body(first, std::min(step, matrix.size(0) - first));
}

// The cross-entropy of rows whose columns are dealt over a group, without ever holding a row of the whole vocabulary:
// the maximum, the sum of exponentials and the label's logit of a row are all that ranks exchange.
struct SplitCrossEntropy : torch::autograd::Function<SplitCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels,
                            const comm::Group* group) {
    const int64_t rows = logits.size(0), columns = logits.size(1);
    const at::ScalarType wide = nn::accumulate_type(logits.scalar_type());
    const at::Tensor ignored = nn::ignored_labels(labels, columns * group->size());
    nn::SoftmaxFigures figures;
    const at::Tensor local = local_rows(labels, group->rank() * columns, columns);
    if (nn::own_rows_take(logits, kernels::Part::kLoss)) {
      figures = nn::softmax_figures(nn::rows_of(logits), local);
    } else {
      const at::TensorOptions options = logits.options().dtype(wide);
      figures = {.maximum = at::empty({rows}, options), .sum = at::empty({rows}, options), .label_logit = {}};
      for_row_chunks(logits, [&](int64_t first, int64_t count) {
        const at::Tensor x = logits.narrow(0, first, count).to(wide);
        const at::Tensor highest = x.amax(1, /*keepdim=*/true);
        figures.maximum.narrow(0, first, count).copy_(highest.squeeze(1));
        figures.sum.narrow(0, first, count).copy_(x.sub(highest).exp_().sum(1));
      });
      figures.label_logit = logits.gather(1, local.clamp_min(0).unsqueeze(1)).squeeze(1).to(wide);
      figures.label_logit.masked_fill_(local.eq(kNotHere), 0);
    }

    merge_over(*group, figures);

    context->save_for_backward({local, ignored, figures.maximum, figures.sum});
    // Not a saved variable, so that the backward pass sees when nobody else holds the logits any more.
    context->saved_data["logits"] = logits.detach();
    return (figures.sum.log() - (figures.label_logit - figures.maximum)).masked_fill_(ignored, 0).sum();
  }

  // softmax - one_hot(label), times the gradient; in place of the logits when they are this graph's alone.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    TORCH_CHECK(context->saved_data.count("logits") == 1, "a loss's graph can be run back only once");
    at::Tensor logits = context->saved_data["logits"].toTensor();
    context->saved_data.clear();
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &local = saved[0], &ignored = saved[1], &maxima = saved[2], &sums = saved[3];
    const bool alone = logits.use_count() == 1 && logits.storage().use_count() == 1;
    at::Tensor result = alone ? logits : at::empty_like(logits);
    if (nn::own_rows_take(logits, kernels::Part::kLoss) && result.stride(1) == 1) {
      const at::Tensor labels = local.masked_fill(ignored, nn::kIgnoredLabel);
      nn::write_logit_gradient(result, nn::rows_of(logits), labels, maxima, sums, gradients[0]);
      return {std::move(result), {}, {}};
    }
    const at::Tensor scale = (gradients[0] / sums).masked_fill_(ignored, 0).unsqueeze(1);
    const at::Tensor hot = local.ne(kNotHere).to(scale.scalar_type()).mul_(gradients[0]).neg_().unsqueeze(1);
    const at::Tensor columns = local.clamp_min(0).unsqueeze(1);
    const bool wide = logits.scalar_type() == scale.scalar_type();
    for_row_chunks(logits, [&](int64_t first, int64_t count) {
      const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, first, count); };
      at::Tensor rows = wide ? part(result) : part(logits).to(scale.scalar_type());
      at::sub_out(rows, wide ? part(logits) : rows, part(maxima).unsqueeze(1));
      rows.exp_().mul_(part(scale)).scatter_add_(1, part(columns), part(hot));
      if (!wide) part(result).copy_(rows);
    });
    return {std::move(result), {}, {}};
  }
};

}  // namespace

at::Tensor look_up_own_rows(const at::Tensor& tokens, const nn::Parameter& weight) {
  return OwnRows::apply(weight.weight, tokens, weight.offset[0]);
}

nn::Loss vocabulary_parallel_loss(const comm::Group& group) {
  if (group.size() == 1) return nn::cross_entropy_sum;
  return [&group](const at::Tensor& logits, const at::Tensor& labels) {
    return SplitCrossEntropy::apply(logits.flatten(0, 1), labels.flatten(), &group);
  };
}

}  // namespace titan::parallel
