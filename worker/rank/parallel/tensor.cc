#include "worker/rank/parallel/tensor.h"

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/head_loss.h"
#include "worker/rank/parallel/kept_scatter.h"
#include "worker/rank/parallel/tensor_operands.h"
#include "worker/rank/parallel/tensor_overlap.h"
#include "worker/rank/parallel/tensor_vocabulary.h"

namespace titan::parallel {
namespace {

constexpr int64_t kTokenDim = 1;  // Dimension of [B, T, D].
constexpr int64_t kFeatureDim = 2;

bool alone(const TensorParallel& tensor) {
  TORCH_CHECK(tensor.group != nullptr, "tensor parallel: no group");
  if (tensor.group->size() == 1) return true;
  TORCH_CHECK(!tensor.overlap || tensor.sequence,
              "parallelism.enable_async_tensor_parallel needs parallelism.enable_sequence_parallel: only then is there "
              "a gathering or a scattering of the sequence to overlap");
  return false;
}

// From the form between sub-blocks to whole activations, of which each rank computes something of its own.
nn::Transform enter(const TensorParallel& tensor) {
  const comm::Group* group = tensor.group;
  if (tensor.sequence) return [group](const at::Tensor& x) { return comm::gather(x, kTokenDim, *group); };
  return [group](const at::Tensor& x) { return comm::fan_out(x, *group); };
}

// From each rank's partial sums back to the form between sub-blocks.
nn::Transform leave(const TensorParallel& tensor) {
  const comm::Group* group = tensor.group;
  if (tensor.sequence) return [group](const at::Tensor& x) { return scatter_sum(x, kTokenDim, *group); };
  return [group](const at::Tensor& x) { return comm::all_reduce(x, *group); };
}

void partial(nn::Parameter& parameter) { parameter.on_tensor_axis = nn::OnTensorAxis::kPartial; }
void partial(nn::RmsNorm& norm) { partial(norm.weight()); }

// Each rank computes some of the outputs.
void split_columns(nn::Linear& layer, const comm::Group& group) {
  split(layer.weight(), 0, group);
  if (layer.bias() != nullptr) split(*layer.bias(), 0, group);
}

// Each rank reads some of the inputs; what they compute are terms of a sum, to which the bias is added once. With the
// sequence split a rank adds the bias to its own tokens only, and so its gradient is a part.
void split_rows(nn::Linear& layer, const TensorParallel& tensor) {
  split(layer.weight(), 1, *tensor.group);
  if (layer.bias() != nullptr && tensor.sequence) partial(*layer.bias());
  if (tensor.overlap) {
    layer.product = product_and_scatter(*tensor.group);
  } else if (tensor.operands && tensor.sequence) {
    layer.product = multiply_and_scatter(*tensor.group);
  } else {
    layer.seams.output = leave(tensor);
  }
}

// How a sub-block reads its input: `seams` gathers it before the products, or `project` does both at a time.
void set_entry(nn::Seams& seams, nn::Projections& project, const TensorParallel& tensor) {
  if (tensor.overlap) {
    project = gather_and_project(*tensor.group);
  } else if (tensor.operands && tensor.sequence) {
    project = gather_operand_and_project(*tensor.group);
  } else {
    seams.input = enter(tensor);
  }
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
              " does not divide by the ", group.size(), " ranks of ", group.name());
  rows /= group.size();
  parameter.offset.at(dim) += group.rank() * rows;
  parameter.on_tensor_axis = nn::OnTensorAxis::kSplit;
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
  // Every rank norms heads of its own with the same weights.
  if (attention.q_norm) partial(*attention.q_norm);
  if (attention.k_norm) partial(*attention.k_norm);
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
  // All ranks compute the same latents from the whole input, but each feeds them to heads of its own: the gradients
  // that come back, and so those of everything before the heads, are terms of a sum.
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
  // A tied matrix has been cut with the embedding, by the same rows.
  if (output.weight().on_tensor_axis != nn::OnTensorAxis::kSplit) split_columns(output, *group);
  if (tensor.overlap) {
    output.product = gather_and_multiply(*group);
  } else if (tensor.operands && tensor.sequence) {
    output.product = gather_operand_and_multiply(*group);
  } else {
    output.seams.input = enter(tensor);
  }
  if (!loss_parallel) {
    output.seams.output = [group](const at::Tensor& logits) { return comm::gather_alike(logits, kFeatureDim, *group); };
  }
}

nn::Loss::ByParts vocabulary_parallel_loss_by_parts(const TensorParallel& tensor) {
  return [whole = enter(tensor), group = tensor.group](const at::Tensor& input, const nn::Parameter& weight,
                                                       const at::Tensor& labels, int64_t columns) {
    return nn::head_cross_entropy_sum(whole(input), weight, labels, columns, group);
  };
}

}  // namespace titan::parallel
