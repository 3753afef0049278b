#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/precision.h"

namespace titan::parallel {

struct ShardedParameter;

// How the weights of a unit travel from the ranks that hold their shards: what a rank writes into its part of the
// gathered buffer, in elements of which type, and how layers read what arrives. Used by all units of its kind, in any
// order.
class GatherRecipe {
 public:
  virtual ~GatherRecipe() = default;

  // Of an element that travels; one for each of the shard.
  virtual at::ScalarType type(const Precision& precision) const = 0;

  // Writes a rank's shard [shard] (in the master's type, on the computing device) as it travels into `piece` [shard].
  // `parameters` say where each one's rows lie in both.
  virtual void pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
                    at::Tensor& piece) const = 0;

  // Undefined: numbers arrive, in the layer's leaf. Else what arrived is read with these scales
  // (nn::Parameter::arrived), the same on all ranks that gather: a recipe that needs the largest number of a whole
  // parameter finds it out for all units before a step's first gather.
  virtual at::Tensor scales(const nn::Parameter& parameter) const = 0;
};

// The first recipe: the master's numbers in the type that layers compute in.
const GatherRecipe& gather_cast();

}  // namespace titan::parallel
