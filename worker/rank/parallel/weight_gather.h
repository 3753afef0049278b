#pragma once

// A shard unit's weights are gathered in the types, by the recipe and into the memory that these classes define;
// Float8Gather sends eight bits an element.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::parallel {

// Data types of one shard unit. The same policy holds on every mesh, one rank included.
struct Precision {
  at::ScalarType master = at::kFloat;  // Shards that the optimizer updates, and their gradients.
  at::ScalarType param = at::kFloat;   // Gathered weights and activations.
  at::ScalarType reduce = at::kFloat;  // Gradients on the wire.
};

// `dtype` is training.dtype: "float64" overrides the other two; "bfloat16" stores shards in bfloat16.
// Errors: InvalidArgument naming the value.
absl::StatusOr<Precision> make_precision(const std::string& dtype, const std::string& mixed_precision_param,
                                         const std::string& mixed_precision_reduce);

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

// Memory for gathered weights that stays where it is for the whole run: what a device's graph reads must lie where it
// lay when the graph was captured. Units of one layout that are never gathered at the same time take it in turn.
class WeightSlot {
 public:
  // One piece for each weight of a unit.
  WeightSlot(const std::vector<int64_t>& bytes, at::Device device);

  // The weight's storage lies in this piece from now on; not while another's does.
  void lend(size_t piece, c10::StorageImpl& storage);
  // The storage is empty again.
  void take_back(size_t piece, c10::StorageImpl& storage);

 private:
  struct Piece {
    at::Tensor memory;  // Bytes.
    const c10::StorageImpl* borrower = nullptr;
  };
  std::vector<Piece> pieces_;
};

}  // namespace titan::parallel
