#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "worker/rank/comm/group.h"

// How the ranks' keys and values reach each other, packed as one tensor a rank; attention itself is elsewhere.
namespace titan::parallel {

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
