#pragma once

// Context parallelism: every rank of a group holds a share of each row's tokens. Attention exchanges keys and values by
// an all-gather or around a ring (ring attention, arXiv 2310.01889, with the balance of arXiv 2311.09431).

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/context_load_balance.h"

namespace titan::parallel {

struct ContextParallel {
  const comm::Group* group = nullptr;  // Must outlive the model.
  LoadBalance balance = LoadBalance::kHeadTail;
  std::vector<LayersOfMask> layers;  // Masks of the whole model, for LoadBalance::kWork.
  std::string rotate = "allgather";  // Or "alltoall": keys and values go around a ring.
};

// Returns attention over the keys of all ranks, exact in forward and backward. AttentionInput has the tokens of this
// rank's share (shard_microbatch()). Masks use positions of the whole row. If nothing is masked, ranks may hold any
// tokens of the row, equally many each, and the microbatch is not read.
//
// Traffic of one call on n ranks, with `block` = B * Hkv * T / n * (D + Dv) elements, in compute dtype for keys and
// values and in at least fp32 for their gradients:
//   allgather  forward   1 all_gather of n * block
//              backward  1 all_gather of n * block, 1 reduce_scatter of n * block
//   alltoall   forward   n - 1 sends and n - 1 receives of block
//              backward  n - 1 sends and receives of block, n sends and receives of gradients of block
// "allgather" holds the keys and values of all ranks while it runs. "alltoall" holds those of two ranks, and in the
// backward pass also two ranks' gradients of them. Both save only the rank's own for the backward pass.
nn::AttentionCore context_parallel_attention(const ContextParallel& context);

// Returns this rank's share of a whole-row microbatch: tokens and labels [B, T / size], positions [T / size]. Documents
// stay whole. All rows are split the same way. With LoadBalance::kWork the shares differ between microbatches, so read
// them from the context.
nn::MicrobatchContext shard_microbatch(const nn::MicrobatchContext& whole, const ContextParallel& context);

// Exchanges the ranks' keys and values, packed as one tensor per rank: [B, T / size, Hkv, D + Dv].
class ContextExchange {
 public:
  virtual ~ContextExchange() = default;

  // Calls use(owner, packed) for every rank's block. This rank's block comes first, while the others are in flight.
  // `own` is moved in, so that its memory is freed as soon as it has been used.
  using Use = std::function<void(int owner, const at::Tensor& packed)>;
  virtual void visit(at::Tensor own, const Use& use) const = 0;

  // Same, and sums over all ranks what contribute() returns for a block. Returns the sum for this rank's block, shaped
  // like it.
  using Contribute = std::function<at::Tensor(int owner, const at::Tensor& packed)>;
  virtual at::Tensor visit_and_reduce(at::Tensor own, const Contribute& contribute) const = 0;
};

std::unique_ptr<ContextExchange> make_gathering_exchange(const comm::Group& group);
std::unique_ptr<ContextExchange> make_ring_exchange(const comm::Group& group);

}  // namespace titan::parallel
