#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"

// Decides which positions of a row each rank of the context axis holds, the same number on every rank. Each rank
// computes the split without communication, because it follows from what all of them know.
namespace titan::parallel {

enum class LoadBalance {
  kNone,      // Contiguous shares in rank order.
  kHeadTail,  // A chunk from the head and one from the tail. Balances a causal mask.
  kWork,      // Blocks assigned by their attention work. Balances any mask.
};

// Number of layers of a model that use this mask.
struct LayersOfMask {
  nn::AttentionMask mask;
  int64_t layers = 1;
};

// Returns the number of keys that the query at each position attends to, summed over the rows of a microbatch and the
// layers: [seq_len]. `documents`: int64 [rows, seq_len] in CPU memory; undefined: a row is one document.
std::vector<int64_t> attention_work(const at::Tensor& documents, int64_t rows, int64_t seq_len,
                                    const std::vector<LayersOfMask>& layers);

// Returns the largest work of a rank.
int64_t max_work(const nn::RowShares& shares, const std::vector<int64_t>& work);

// Gives each rank one contiguous chunk. seq_len must be a multiple of the number of ranks.
nn::RowShares split_contiguous(int64_t seq_len, int ranks);

// Cuts the row into 2 * ranks chunks and gives rank r chunks r and 2 * ranks - 1 - r (arXiv 2311.09431). seq_len must
// be a multiple of 2 * ranks.
nn::RowShares split_head_tail(int64_t seq_len, int ranks);

// Balances `work` [seq_len]. A share is up to eight blocks of equal length, as many as divide it. Blocks are assigned
// in order of decreasing work, each to the least loaded rank that has capacity left (longest processing time first,
// Graham 1969, with equal counts; PyTorch's _PTRRLoadBalancer assigns the same order in zigzag). The simpler
// split_head_tail() or split_contiguous(), which have fewer segments, is used where its maximum is within 1% of that.
// So no rank has more work than the maximum of either, and a plain causal row is split by head and tail. seq_len must
// be a multiple of 2 * ranks.
nn::RowShares split_by_work(const std::vector<int64_t>& work, int ranks);

}  // namespace titan::parallel
