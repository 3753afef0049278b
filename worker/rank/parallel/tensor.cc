#include "worker/rank/parallel/tensor.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/saved_activations.h"
#include "worker/rank/parallel/tensor_operands.h"
#include "worker/rank/parallel/tensor_overlap.h"

namespace titan::parallel {
namespace {

constexpr int64_t kTokenDim = 1;  // Dim of [B, T, D].
constexpr int64_t kFeatureDim = 2;

bool alone(const TensorParallel& tensor) {
  TORCH_CHECK(tensor.group != nullptr, "tensor parallel: no group");
  if (tensor.group->size() == 1) return true;
  TORCH_CHECK(
      !tensor.overlap || tensor.sequence,
      "parallelism.enable_async_tensor_parallel needs parallelism.enable_sequence_parallel: without it there is "
      "no gather or scatter of the sequence to overlap");
  return false;
}

// Maps the form between sub-blocks to whole activations, from which each rank computes a different part.
nn::Transform enter(const TensorParallel& tensor) {
  const comm::Group* group = tensor.group;
  if (tensor.sequence) return [group](const at::Tensor& x) { return comm::gather(x, kTokenDim, *group); };
  return [group](const at::Tensor& x) { return comm::fan_out(x, *group); };
}

// Maps each rank's partial sums back to the form between sub-blocks.
nn::Transform leave(const TensorParallel& tensor) {
  const comm::Group* group = tensor.group;
  if (tensor.sequence) return [group](const at::Tensor& x) { return scatter_sum(x, kTokenDim, *group); };
  return [group](const at::Tensor& x) { return comm::all_reduce(x, *group); };
}

void partial(nn::Parameter& parameter) { parameter.on_tensor_axis = nn::TensorAxisPlacement::kPartial; }
void partial(nn::RmsNorm& norm) { partial(norm.weight()); }

// Each rank computes a part of the outputs.
void split_columns(nn::Linear& layer, const comm::Group& group) {
  split(layer.weight(), 0, group);
  if (layer.bias() != nullptr) split(*layer.bias(), 0, group);
}

// Each rank reads a part of the inputs. The results are terms of a sum, to which the bias is added once. With sequence
// parallelism a rank adds the bias only to its own tokens, so the bias gradient is partial.
void split_rows(nn::Linear& layer, const TensorParallel& tensor) {
  split(layer.weight(), 1, *tensor.group);
  if (layer.bias() != nullptr && tensor.sequence) partial(*layer.bias());
  if (tensor.overlap) {
    layer.product = async_matmul_reduce_scatter(*tensor.group);
  } else if (tensor.operands && tensor.sequence) {
    layer.product = operand_matmul_reduce_scatter(*tensor.group);
  } else {
    layer.seams.output = leave(tensor);
  }
}

// Sets how a sub-block reads its input: `seams` gathers it before the matmuls, or `project` gathers and multiplies.
void set_entry(nn::Seams& seams, nn::Projections& project, const TensorParallel& tensor) {
  if (tensor.overlap) {
    project = async_all_gather_matmuls(*tensor.group);
  } else if (tensor.operands && tensor.sequence) {
    project = operand_all_gather_matmuls(*tensor.group);
  } else {
    seams.input = enter(tensor);
  }
}

// A norm over all heads of a token is split like the heads, and its squares are summed over the ranks. Otherwise every
// rank normalizes different heads with the same weights.
void split_head_norm(nn::RmsNorm& norm, bool whole, const comm::Group& group) {
  if (!whole) return partial(norm);
  split(norm.weight(), 0, group);
  norm.ranks = &group;
}

void check_heads(int64_t heads, const char* what, const std::string& fqn, const comm::Group& group) {
  TORCH_CHECK(heads % group.size() == 0, "parallelism.tensor_parallel_degree ", group.size(), " must divide ", heads,
              " ", what, " of ", fqn);
}

}  // namespace

void split(nn::Parameter& parameter, int64_t dim, const comm::Group& group) {
  if (group.size() == 1) return;
  TORCH_CHECK(!parameter.weight.defined(), parameter.fqn, ": cannot be split once it holds values");
  int64_t& rows = parameter.shape.at(dim);
  TORCH_CHECK(rows % group.size() == 0, parameter.fqn, ": dimension ", dim, " of size ", rows,
              " is not divisible by the ", group.size(), " ranks of ", group.name());
  rows /= group.size();
  parameter.offset.at(dim) += group.rank() * rows;
  parameter.on_tensor_axis = nn::TensorAxisPlacement::kShard;
}

void split_embedding(nn::Embedding& embedding, const TensorParallel& tensor) {
  if (alone(tensor)) return;
  split(embedding.weight(), 0, *tensor.group);
  embedding.lookup = look_up_own_rows;
  embedding.seams.output = leave(tensor);
}

void split_norm(nn::RmsNorm& norm, const TensorParallel& tensor) {
  if (!alone(tensor) && tensor.sequence) partial(norm);
}

void split_attention(nn::GroupedAttention& attention, const TensorParallel& tensor) {
  if (alone(tensor)) return;
  const comm::Group& group = *tensor.group;
  const std::string fqn = attention.wq.weight().fqn;
  check_heads(attention.options().heads, "query heads", fqn, group);
  check_heads(attention.options().kv_heads, "key-value heads", attention.wk.weight().fqn, group);
  for (nn::Linear* layer : {&attention.wq, &attention.wk, &attention.wv}) split_columns(*layer, group);
  split_rows(attention.wo, tensor);
  if (attention.sinks != nullptr) split(*attention.sinks, 0, group);
  for (std::optional<nn::RmsNorm>* norm : {&attention.q_norm, &attention.k_norm}) {
    if (*norm) split_head_norm(**norm, attention.options().whole_norm, group);
  }
  set_entry(attention.seams, attention.project, tensor);
}

void split_attention(nn::LatentAttention& attention, const TensorParallel& tensor) {
  if (alone(tensor)) return;
  const comm::Group& group = *tensor.group;
  check_heads(attention.options().heads, "heads", attention.wo->weight().fqn, group);
  for (std::optional<nn::Linear>* layer : {&attention.wq, &attention.wq_b, &attention.wkv_b}) {
    if (*layer) split_columns(**layer, group);
  }
  split_rows(*attention.wo, tensor);
  // All ranks compute the same latents from the whole input, but each uses them for different heads. So the gradients
  // that come back, and those of everything before the heads, are terms of a sum.
  for (std::optional<nn::Linear>* layer : {&attention.wq_a, &attention.wkv_a}) {
    if (*layer) partial((*layer)->weight());
  }
  if (attention.q_norm) partial(*attention.q_norm);
  partial(*attention.kv_norm);
  set_entry(attention.seams, attention.project, tensor);
}

void split_feed_forward(nn::FeedForward& feed_forward, const TensorParallel& tensor) {
  if (alone(tensor)) return;
  split_columns(feed_forward.w1, *tensor.group);
  split_columns(feed_forward.w3, *tensor.group);
  split_rows(feed_forward.w2, tensor);
  set_entry(feed_forward.seams, feed_forward.project, tensor);
}

void split_head(nn::Linear& output, const TensorParallel& tensor, bool loss_parallel) {
  if (alone(tensor)) return;
  const comm::Group* group = tensor.group;
  // A tied matrix was split with the embedding, along the same rows.
  if (output.weight().on_tensor_axis != nn::TensorAxisPlacement::kShard) split_columns(output, *group);
  if (tensor.overlap) {
    output.product = async_all_gather_matmul(*group);
  } else if (tensor.operands && tensor.sequence) {
    output.product = operand_all_gather_matmul(*group);
  } else {
    output.seams.input = enter(tensor);
  }
  if (!loss_parallel) {
    output.seams.output = [group](const at::Tensor& logits) { return comm::gather_alike(logits, kFeatureDim, *group); };
  }
}

nn::Loss::ByParts vocabulary_parallel_loss_by_parts(const TensorParallel& tensor, double softcap) {
  return [whole = enter(tensor), group = tensor.group, softcap](const at::Tensor& input, const nn::Parameter& weight,
                                                                const at::Tensor& labels, int64_t columns) {
    return nn::head_cross_entropy_sum(whole(input), weight, labels, columns, group, softcap);
  };
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// embedding_dense_backward skips this index, so the gradients of other ranks' tokens need no mask or copy.
constexpr int64_t kNotHere = -1;

// Maps each id to a row of [first, first + rows), or to kNotHere. Same shape as `ids`.
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
// are small compared with the logits.
template <typename Body>
void for_row_chunks(const at::Tensor& matrix, Body&& body) {
  constexpr int64_t kElements = int64_t{1} << 22;
  const int64_t step = std::max<int64_t>(1, kElements / std::max<int64_t>(1, matrix.size(1)));
  for (int64_t first = 0; first < matrix.size(0); first += step) body(first, std::min(step, matrix.size(0) - first));
}

// Cross-entropy of rows whose columns are split over a group, without holding a row of the whole vocabulary: ranks
// exchange only the maximum, the sum of exponentials and the label's logit of each row.
struct SplitCrossEntropy : torch::autograd::Function<SplitCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels,
                            const comm::Group* group) {
    const int64_t rows = logits.size(0), columns = logits.size(1);
    const at::ScalarType wide = nn::accumulate_type(logits.scalar_type());
    const at::Tensor ignored = nn::ignored_labels(labels, columns * group->size());
    nn::SoftmaxStats figures;
    const at::Tensor local = local_rows(labels, group->rank() * columns, columns);
    if (nn::can_use_row_kernels(logits, kernels::TrainingPart::kLoss)) {
      figures = nn::softmax_stats(nn::rows_of(logits), local);
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

    all_reduce_stats(*group, figures);

    context->save_for_backward({local, ignored, figures.maximum, figures.sum});
    // Not a saved variable, so that the backward pass can see that it holds the only reference to the logits.
    context->saved_data["logits"] = logits.detach();
    return (figures.sum.log() - (figures.label_logit - figures.maximum)).masked_fill_(ignored, 0).sum();
  }

  // Computes softmax - one_hot(label), times the gradient, in place if this graph holds the only reference to the
  // logits.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    TORCH_CHECK(context->saved_data.count("logits") == 1, "the backward pass of a loss can run only once");
    at::Tensor logits = context->saved_data["logits"].toTensor();
    context->saved_data.clear();
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &local = saved[0], &ignored = saved[1], &maxima = saved[2], &sums = saved[3];
    const bool alone = logits.use_count() == 1 && logits.storage().use_count() == 1;
    at::Tensor result = alone ? logits : at::empty_like(logits);
    if (nn::can_use_row_kernels(logits, kernels::TrainingPart::kLoss) && result.stride(1) == 1) {
      const at::Tensor labels = local.masked_fill(ignored, nn::kIgnoreIndex);
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

namespace {

// With a saved result the input's values are not read: it may be a placeholder for a matmul that was not recomputed.
struct KeptScatter : torch::autograd::Function<KeptScatter> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& partial, int64_t dim,
                            const comm::Group* group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["dim"] = dim;
    return nn::saved_or_compute(
        {.kind = nn::OpCall::Kind::kScatter}, [&] { return comm::reduce_scatter(partial, dim, *group); }, partial);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    return {comm::gather(gradients[0], context->saved_data["dim"].toInt(), group), {}, {}};
  }
};

}  // namespace

at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const comm::Group& group) {
  if (group.size() == 1 || nn::SavedActivations::current() == nullptr) return comm::reduce_scatter(partial, dim, group);
  return KeptScatter::apply(partial, dim, &group);
}

}  // namespace titan::parallel
