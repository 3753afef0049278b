#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/nn/kept_results.h"
#include "worker/parallel/pareto.h"

// What a recomputed block keeps of its first pass.
namespace titan::parallel {

// torchtitan's selective checkpointing per operation: attention, reduce-scatters, and every other matrix product of
// the block (the first, third, ...). Products with a matrix of the same shape as one whose module name holds one of
// `recompute_fqns` are always computed again, and not counted. Routed experts are, too: torchtitan's list has no
// grouped product. Unlike there, LibTorch's attention for CPUs is on the list, so that all devices compute the same.
std::shared_ptr<nn::KeepPolicy> keep_by_operation(nn::Block& block, const std::vector<std::string>& recompute_fqns);

// Which results to keep under a budget: those that save the most FLOPs of all choices that take at most `budget` (0 to
// 1) of the bytes that all of the block's costly results would take. 0 is full recomputation; 1 computes only
// element-wise operations, norms and routed experts again. Bytes and FLOPs are those of the block's first pass, which
// keeps nothing; they follow from shapes, so that ranks that share a block's collectives choose alike. Routed experts
// are left out because their rows vary from rank to rank: a choice that weighed them could keep a collective's result
// on one rank and repeat the collective on another. A reduce-scatter counts with the product that feeds it: one result
// spares both. `planned` is told the choices and the one taken, once; may be empty.
using Planned = std::function<void(const std::vector<KeepChoice>& choices, const KeepChoice& chosen)>;
std::shared_ptr<nn::KeepPolicy> keep_by_budget(double budget, Planned planned);

}  // namespace titan::parallel
