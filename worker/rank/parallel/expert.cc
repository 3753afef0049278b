#include "worker/rank/parallel/expert.h"

#include <ATen/ops/constant_pad_nd.h>

#include "worker/rank/comm/functional.h"
#include "worker/rank/parallel/expert_dispatch.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::parallel {
namespace {

using nn::TensorAxisPlacement;

constexpr int64_t kSequence = 1;  // Dim of [B, T, D].
constexpr int64_t kTokens = 0;    // Dim of [n, D].

void on_tensor_axis(nn::Parameter& parameter, TensorAxisPlacement how) { parameter.on_tensor_axis = how; }

void split_columns(nn::FeedForward& feed_forward, const comm::Group& group) {
  split(feed_forward.w1.weight(), 0, group);
  split(feed_forward.w3.weight(), 0, group);
  split(feed_forward.w2.weight(), 1, group);
}

// Splits every expert's hidden channels: columns of the first matrices and rows of the last. In the fused first matrix
// a channel's gate and linear rows are adjacent, so an even split keeps the pairs together.
void split_channels(nn::Experts& experts, const comm::Group& group) {
  const auto& parameters = experts.parameters;
  if (experts.biased()) {
    TORCH_CHECK(parameters[2]->shape[2] % group.size() == 0, parameters[2]->fqn, ": ", parameters[2]->shape[2],
                " channels of an expert are not divisible by the ", group.size(), " ranks of ", group.name());
    split(*parameters[0], 1, group);
    split(*parameters[1], 1, group);
    split(*parameters[2], 2, group);
    on_tensor_axis(
        *parameters[3],
        TensorAxisPlacement::kReplicate);  // Also if the expert axis has split it: it is the same on these ranks.
    experts.partial_bias_factor = 1.0 / group.size();
  } else {
    split(*parameters[0], 1, group);
    split(*parameters[1], 2, group);
    split(*parameters[2], 1, group);
  }
}

// All tensor ranks process all tokens and compute terms of one sum.
void enter_and_leave(nn::Seams& seams, const TensorParallel& tensor) {
  const comm::Group* group = tensor.group;
  if (tensor.sequence) {
    seams.input = [group](const at::Tensor& x) { return comm::gather(x, kSequence, *group); };
    seams.output = [group](const at::Tensor& x) { return scatter_sum(x, kSequence, *group); };
  } else {
    seams.input = [group](const at::Tensor& x) { return comm::fan_out(x, *group); };
    seams.output = [group](const at::Tensor& x) { return comm::all_reduce(x, *group); };
  }
}

int64_t piece_size(const at::Tensor& tokens, const comm::Group& group) {
  TORCH_CHECK(tokens.size(0) % group.size() == 0, "parallelism.expert_tensor_parallel_degree 1: ", tokens.size(0),
              " tokens of a microbatch are not divisible by the ", group.size(),
              " tensor ranks that route them; choose training.local_batch_size and training.seq_len so that they do");
  return tokens.size(0) / group.size();
}

// Every tensor rank holds all tokens and routes a piece of them. With shared experts the routed piece is padded with
// zeros and added to their partial sums, so that one reduction serves both.
void cut_tokens(nn::MixtureOfExperts& moe, const comm::Group& group) {
  const comm::Group* ranks = &group;
  if (!moe.shared_experts) {
    moe.routed_seams.input = [ranks](const at::Tensor& x) {
      piece_size(x, *ranks);
      return comm::take_piece(x, kTokens, *ranks);
    };
    moe.routed_seams.output = [ranks](const at::Tensor& x) { return comm::gather_alike(x, kTokens, *ranks); };
    return;
  }
  split_columns(*moe.shared_experts, group);
  enter_and_leave(moe.seams, {.group = ranks, .sequence = false});
  moe.routed_seams.input = [ranks](const at::Tensor& x) {
    const int64_t count = piece_size(x, *ranks);
    return x.narrow(kTokens, ranks->rank() * count, count);
  };
  moe.routed_seams.output = [ranks](const at::Tensor& x) {
    const int64_t count = x.size(kTokens);
    return at::constant_pad_nd(x, {0, 0, ranks->rank() * count, (ranks->size() - 1 - ranks->rank()) * count});
  };
}

}  // namespace

bool tensor_ranks_split_tokens(const mesh::Mesh& mesh) {
  return mesh.size(mesh::Axis::kExpert) > 1 && mesh.size(mesh::Axis::kTensor) > 1 &&
         mesh.size(mesh::Axis::kExpertTensor) == 1;
}

void split_experts(nn::MixtureOfExperts& moe, const comm::DeviceMesh& mesh, const TensorParallel& tensor,
                   ExpertDispatcher dispatcher) {
  if (mesh.mesh().size(mesh::Axis::kExpert) > 1) {
    const comm::Group& expert = mesh.group(mesh::Axis::kExpert);
    for (nn::Parameter* parameter : moe.experts.parameters) split(*parameter, 0, expert);
    moe.dispatch = dispatcher == ExpertDispatcher::kAllGather ? gather_tokens(expert) : exchange_tokens(expert);
  }
  if (tensor.group->size() == 1) return;
  // The expert-tensor axis is the tensor axis or has size 1.
  if (!tensor_ranks_split_tokens(mesh.mesh())) split_channels(moe.experts, *tensor.group);

  on_tensor_axis(moe.gate.weight(), TensorAxisPlacement::kPartial);
  if (moe.gate.bias() != nullptr) on_tensor_axis(*moe.gate.bias(), TensorAxisPlacement::kPartial);
  if (!tensor_ranks_split_tokens(mesh.mesh())) {
    if (moe.shared_experts) split_columns(*moe.shared_experts, *tensor.group);
    enter_and_leave(moe.seams, tensor);
  } else if (!tensor.sequence) {
    cut_tokens(moe, *tensor.group);
  } else if (moe.shared_experts) {
    split_feed_forward(*moe.shared_experts, tensor);
  }
}

}  // namespace titan::parallel
