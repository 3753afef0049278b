#pragma once

// These classes define the types, the recipe and the memory with which a shard unit's weights are gathered.
// Float8Gather sends eight bits per element.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::parallel {

// Data types of one shard unit. They are the same on every mesh, including a single rank.
struct Precision {
  at::ScalarType master = at::kFloat;  // Shards that the optimizer updates, and their gradients.
  at::ScalarType param = at::kFloat;   // Gathered weights and activations.
  at::ScalarType reduce = at::kFloat;  // Gradients in collectives.
};

// Returns the types for training.dtype (`dtype`) and the mixed-precision keys. "float64" overrides the other two;
// "bfloat16" stores shards in bfloat16. InvalidArgument names the wrong value.
absl::StatusOr<Precision> make_precision(const std::string& dtype, const std::string& mixed_precision_param,
                                         const std::string& mixed_precision_reduce);

struct ShardedParameter;

// How the weights of a unit are gathered from the ranks that hold their shards: what a rank writes into its part of the
// gathered buffer, in which element type, and how layers read the result. All units of one kind use it, in any order.
class GatherRecipe {
 public:
  virtual ~GatherRecipe() = default;

  // Element type in the gather. Each element of the shard is sent as one.
  virtual at::ScalarType type(const Precision& precision) const = 0;

  // Converts a rank's shard [shard] (in the master type, on the compute device) into `piece` [shard] for sending.
  // `parameters` give the position of each parameter's rows in both.
  virtual void pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
                    at::Tensor& piece) const = 0;

  // Returns the scales with which layers read the gathered weight (nn::Parameter::arrived), the same on all gathering
  // ranks and shaped as the recipe defines. Undefined: plain values arrive in the layer's leaf. A recipe that needs the
  // largest magnitude of a whole parameter computes it for all units before a step's first gather.
  virtual at::Tensor scales(const nn::Parameter& parameter) const = 0;
};

// The default recipe: casts master values to the type that layers compute in.
const GatherRecipe& gather_cast();

// Sends weights as e4m3, one byte per element, each weight with one scale. Values and scale are bit-identical to those
// that matmuls with one scale per operand would compute from the gathered weight. The sent values are first rounded to
// the compute type, so this gather changes only the number of bytes.
//
// The scale comes from the largest magnitude of a weight over the ranks that hold its shards: one all-reduce of a float
// per weight of the unit before each gather, or, if precomputed, one for all weights before a step's first gather. A
// tensor axis adds one more all-reduce.
class Float8Gather final : public GatherRecipe {
 public:
  // Groups must outlive this. `tensor` null: the model has no tensor axis.
  Float8Gather(const comm::Group& shard, const comm::Group* tensor, at::ScalarType computed_in, bool precomputes)
      : shard_(shard), tensor_(tensor), type_(computed_in), precomputes_(precomputes) {}

  at::ScalarType type(const Precision& /*precision*/) const override { return at::kFloat8_e4m3fn; }
  // Throws if scales are precomputed and precompute() was not called with these parameters.
  void pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
            at::Tensor& piece) const override;
  // Returns an fp32 scalar.
  at::Tensor scales(const nn::Parameter& parameter) const override;

  bool precomputes() const { return precomputes_; }
  // Computes the scales of these weights after their masters have changed, for all gathers until the next call.
  void precompute(const std::vector<const ShardedParameter*>& parameters, at::Device device) const;

 private:
  // `shards` [elements of the piece], one per parameter.
  void compute_amax(const std::vector<const ShardedParameter*>& parameters, const std::vector<at::Tensor>& shards,
                    at::Device device) const;

  const comm::Group& shard_;
  const comm::Group* const tensor_;
  const at::ScalarType type_;
  const bool precomputes_;
  // State of one rank, written only by its thread: the maxima from the last all-reduce (fp32 scalars), and the scales
  // with which weights were packed.
  mutable std::unordered_map<const nn::Parameter*, at::Tensor> greatest_, scales_;
};

// Memory for gathered weights that keeps its address for the whole run, because a device graph reads the addresses that
// it captured. Units with the same layout that are never gathered at the same time share it.
class WeightSlot {
 public:
  // `bytes` of one piece for each weight of a unit.
  WeightSlot(const std::vector<int64_t>& bytes, at::Device device);

  // Points the weight's storage at this piece. Throws while another weight's storage uses it.
  void lend(size_t piece, c10::StorageImpl& storage);
  // Empties the storage and releases the piece.
  void take_back(size_t piece, c10::StorageImpl& storage);

 private:
  struct Piece {
    at::Tensor memory;  // [bytes], uint8.
    const c10::StorageImpl* borrower = nullptr;
  };
  std::vector<Piece> pieces_;
};

}  // namespace titan::parallel
