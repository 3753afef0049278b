#pragma once

// Context parallelism: every rank of a group holds a share of each row's tokens; attention exchanges keys and values,
// which are gathered or go around a ring (ring attention, arXiv 2310.01889, with the balance of arXiv 2311.09431).

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/context_deal.h"

namespace titan::parallel {

struct ContextParallel {
  const comm::Group* group = nullptr;  // Must outlive the model.
  Balance balance = Balance::kHeadTail;
  std::vector<LayersOfMask> layers;  // Of the whole model, for Balance::kWork.
  std::string rotate = "allgather";  // Or "alltoall": keys and values go around a ring.
};

// The attention over all ranks' keys, exact in forward and backward, for AttentionInput of the local tokens: of the
// share that take_share() gives. Masks count positions of the whole row.
//
// Traffic of one call on n ranks, with `block` = B * Hkv * T / n * (D + Dv) elements, in compute dtype for keys and
// values and in at least fp32 for their gradients:
//   allgather  forward   1 all_gather of n * block
//              backward  1 all_gather of n * block, 1 reduce_scatter of n * block
//   alltoall   forward   n - 1 sends and n - 1 receives of block
//              backward  n - 1 sends and receives of block, n sends and receives of gradients of block
// "allgather" holds all ranks' keys and values while it runs, "alltoall" two ranks' (and in backward two ranks'
// gradients of them); both keep only their own for the backward pass.
nn::AttentionCore context_parallel_attention(const ContextParallel& context);

// This rank's share of a whole-row microbatch: tokens, labels, positions [T / size]; documents stay whole. All rows are
// dealt alike. By work the shares differ from microbatch to microbatch: whoever has to know them reads the context's.
nn::MicrobatchContext take_share(const nn::MicrobatchContext& whole, const ContextParallel& context);

// How the ranks' keys and values reach each other, packed as one tensor a rank.
class ContextExchange {
 public:
  virtual ~ContextExchange() = default;

  // `own` is moved in, so that it is gone as soon as it is used. Calls use(owner, packed) for every rank's block, this
  // rank's own first, while others are still on their way.
  using Use = std::function<void(int owner, const at::Tensor& packed)>;
  virtual void visit(at::Tensor own, const Use& use) const = 0;

  // The same, and sums what use() returns for a block over all ranks: returns the sum for this rank's own block.
  using Contribute = std::function<at::Tensor(int owner, const at::Tensor& packed)>;
  virtual at::Tensor visit_and_reduce(at::Tensor own, const Contribute& contribute) const = 0;
};

std::unique_ptr<ContextExchange> make_gathering_exchange(const comm::Group& group);
std::unique_ptr<ContextExchange> make_ring_exchange(const comm::Group& group);

}  // namespace titan::parallel
