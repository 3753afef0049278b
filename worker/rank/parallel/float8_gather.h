#pragma once

#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/parallel/gather_recipe.h"

namespace titan::parallel {

// Weights travel as e4m3, a byte an element, each with one scale for all of its elements: those that products with one
// scale an operand would make of the gathered weight, bit for bit. What is sent was rounded to the computing type
// before, so that only the bytes tell whether weights are gathered like this.
//
// The scale comes from the greatest magnitude of a weight over the ranks that hold its shards: one all-reduce (a float
// for each weight of the unit) before each gather, or, precomputed, one for all weights before a step's first gather;
// one more over the tensor axis where there is one.
class Float8Gather final : public GatherRecipe {
 public:
  // Groups must outlive this; `tensor` null: the model is not split over such an axis.
  Float8Gather(const comm::Group& shard, const comm::Group* tensor, at::ScalarType computed_in, bool precomputes)
      : shard_(shard), tensor_(tensor), type_(computed_in), precomputes_(precomputes) {}

  at::ScalarType type(const Precision& /*precision*/) const override { return at::kFloat8_e4m3fn; }
  // Throws where scales are precomputed and have not been since these parameters were declared.
  void pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
            at::Tensor& piece) const override;
  at::Tensor scales(const nn::Parameter& parameter) const override;

  bool precomputes() const { return precomputes_; }
  // Finds the scales of these weights, whose masters have changed, for all gathers until the next call.
  void precompute(const std::vector<const ShardedParameter*>& parameters, at::Device device) const;

 private:
  void find_greatest(const std::vector<const ShardedParameter*>& parameters, const std::vector<at::Tensor>& shards,
                     at::Device device) const;

  const comm::Group& shard_;
  const comm::Group* const tensor_;
  const at::ScalarType type_;
  const bool precomputes_;
  // A rank's own, written by the rank's thread alone: what the last all-reduce found, and the scales of what was
  // packed with it.
  mutable std::unordered_map<const nn::Parameter*, at::Tensor> greatest_, scales_;
};

}  // namespace titan::parallel
