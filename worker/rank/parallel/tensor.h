#pragma once

// Tensor parallelism (Megatron-LM, arXiv 1909.08053) with sequence parallelism (arXiv 2205.05198). Each function splits
// one layer's parameters, so that this rank keeps its part, and sets the layer's seams. Splitting columns of the first
// matrices and rows of the last leaves one all-gather and one reduce-scatter per sub-block and pass, or two all-reduces
// without sequence parallelism. In a group of one nothing changes. This file also has the look-up and the loss of a
// split vocabulary.

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
  bool sequence = true;   // Between sub-blocks activations are [B, T / size, dim]; otherwise [B, T, dim] on every rank.
  bool overlap = false;   // Asynchronous: the transfer of one chunk overlaps the matmul of another.
  bool operands = false;  // Gathers the operands of matmuls, which are 8-bit for some recipes. Only with `sequence`.
};

// Keeps rows [rank * n / size, (rank + 1) * n / size) of dim `dim` of the parameter. Throws c10::Error if n is not
// divisible by `size`.
void split(nn::Parameter& parameter, int64_t dim, const comm::Group& group);

void split_embedding(nn::Embedding& embedding, const TensorParallel& tensor);  // Splits rows of the vocabulary.
void split_norm(nn::RmsNorm& norm, const TensorParallel& tensor);              // Only marks its gradient as partial.
void split_attention(nn::GroupedAttention& attention, const TensorParallel& tensor);  // Splits heads.
void split_attention(nn::LatentAttention& attention, const TensorParallel& tensor);   // Low-rank parts stay whole.
void split_feed_forward(nn::FeedForward& feed_forward, const TensorParallel& tensor);
// Splits columns of the vocabulary. The output stays split with `loss_parallel`; otherwise all ranks gather it.
void split_head(nn::Linear& output, const TensorParallel& tensor, bool loss_parallel);
// Returns the loss of logits [B, T, V / size] (split_head with loss_parallel). Its value is the same on every rank of
// the group.
nn::Loss vocabulary_parallel_loss(const comm::Group& group);
// Same for the input of the head, in the form between sub-blocks, without holding all logits of a rank at once.
// `softcap` is that of nn::head_cross_entropy_sum().
nn::Loss::ByParts vocabulary_parallel_loss_by_parts(const TensorParallel& tensor, double softcap = 0);

// Looks up tokens [B, T] in this rank's rows of the embedding: [B, T, dim], with zeros for tokens of other ranks' rows.
at::Tensor look_up_own_rows(const at::Tensor& tokens, const nn::Parameter& weight);

// comm::reduce_scatter of `partial` [B, T, D]: returns this rank's piece along `dim` of the sum. A recomputed block can
// save the result (worker/rank/nn/saved_activations.h).
at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const comm::Group& group);

}  // namespace titan::parallel
