#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"

// Which positions of a row each rank of the context axis holds, equally many everywhere. Every deal follows from what
// all of these ranks know alike, so that each computes it alone.
namespace titan::parallel {

enum class Balance {
  kNone,      // Rank after rank, in the row's order.
  kHeadTail,  // A chunk from the head and one from the tail: even under a causal mask.
  kWork,      // Blocks by what attention does for them: even under any mask.
};

// So many layers of a model see by this mask.
struct LayersOfMask {
  nn::AttentionMask mask;
  int64_t layers = 1;
};

// The keys that the query at each position [seq_len] sees, summed over the rows of a microbatch and the layers.
// `documents`: int64 [rows, seq_len] in the CPU's memory; undefined: a row is one document.
std::vector<int64_t> work_of_queries(const at::Tensor& documents, int64_t rows, int64_t seq_len,
                                     const std::vector<LayersOfMask>& layers);

// The largest work of a rank.
int64_t most_work(const nn::RowShares& shares, const std::vector<int64_t>& work);

// seq_len must divide by the ranks.
nn::RowShares deal_in_order(int64_t seq_len, int ranks);

// The row is cut in 2 * ranks chunks, rank r has chunks r and 2 * ranks - 1 - r (arXiv 2311.09431). seq_len must divide
// by 2 * ranks.
nn::RowShares deal_head_tail(int64_t seq_len, int ranks);

// A share is up to eight blocks of equal length, as many as divide it. The block with the most work goes to the rank
// that has the least so far and still room, then the next (longest processing time first, Graham 1969, with equal
// counts; PyTorch's _PTRRLoadBalancer deals the same order in zigzag). Head and tail, or the row's order, where their
// fullest rank has no more than a hundredth above that deal's: they are fewer pieces. So no rank ever has more work
// than the fullest has by either, and a plain causal row is dealt by head and tail. seq_len (of `work`) must divide by
// 2 * ranks.
nn::RowShares deal_by_work(const std::vector<int64_t>& work, int ranks);

}  // namespace titan::parallel
