#pragma once

// Tensor parallelism (Megatron-LM, arXiv 1909.08053) with sequence parallelism (arXiv 2205.05198): each function cuts
// one layer's parameters to this rank's part and sets its seams. Columns of the first matrices and rows of the last
// leave one all-gather and one reduce-scatter for a sub-block and pass, or two all-reduces without sequence
// parallelism. In a group of one nothing changes. The look-up and the loss of a split vocabulary are here too.

#include <ATen/ATen.h>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/attention.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/loss.h"

namespace titan::parallel {

struct TensorParallel {
  const comm::Group* group = nullptr;  // Must outlive the layers.
  bool sequence = true;   // Between sub-blocks activations are [B, T / size, dim]; else whole on every rank.
  bool overlap = false;   // Asynchronous: a chunk's transfer overlaps another chunk's product.
  bool operands = false;  // What products read is gathered: eight bits of some recipes. With the sequence only.
};

// Keeps rows [rank * n / size, (rank + 1) * n / size) of dim `dim` of the parameter. Throws when it does not divide.
void split(nn::Parameter& parameter, int64_t dim, const comm::Group& group);

void split_embedding(nn::Embedding& embedding, const TensorParallel& tensor);         // Rows of the vocabulary.
void split_norm(nn::RmsNorm& norm, const TensorParallel& tensor);                     // Only marks its gradient.
void split_attention(nn::GroupedAttention& attention, const TensorParallel& tensor);  // Heads.
void split_attention(nn::LatentAttention& attention, const TensorParallel& tensor);  // Heads; low-rank parts are whole.
void split_feed_forward(nn::FeedForward& feed_forward, const TensorParallel& tensor);
// Columns of the vocabulary. With `loss_parallel` its output stays split; else it is gathered for all alike.
void split_head(nn::Linear& output, const TensorParallel& tensor, bool loss_parallel);
// The loss of logits [B, T, V / size] (split_head with loss_parallel): the same value on every rank of the group.
nn::Loss vocabulary_parallel_loss(const comm::Group& group);
// The same of what the head reads, in the form between sub-blocks, without all logits of a rank at once.
nn::Loss::ByParts vocabulary_parallel_loss_by_parts(const TensorParallel& tensor);

// The rows of the whole embedding that this rank's part of it has; zeros for the tokens that others have.
at::Tensor look_up_own_rows(const at::Tensor& tokens, const nn::Parameter& weight);

// comm::reduce_scatter, whose result a recomputed block can keep (worker/rank/nn/saved_activations.h).
at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const comm::Group& group);

}  // namespace titan::parallel
