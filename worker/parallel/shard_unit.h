#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "worker/comm/group.h"
#include "worker/nn/block.h"
#include "worker/parallel/precision.h"

namespace titan::parallel {

// How long gathered weights stay.
enum class Keep {
  kNothing,        // Freed after the forward pass and again after the backward pass.
  kUntilBackward,  // Freed after the backward pass.
  kUntilStepEnd,   // Gathered once a step.
};

// This rank's rows of one parameter. A rank holds what torch.chunk along dim 0 gives it: ceil(rows / ranks) rows, the
// last ranks fewer or none; in the flat shard every rank's piece is padded to the same size.
struct ShardedParameter {
  nn::Parameter* parameter = nullptr;
  int64_t total_rows = 0;
  int64_t row_numel = 0;
  int64_t chunk_rows = 0;  // Rows of a full piece.
  int64_t first_row = 0;   // This rank's rows are [first_row, first_row + rows).
  int64_t rows = 0;
  int64_t offset = 0;  // Start in the flat shard, in elements.
  at::Tensor value;    // [rows, ...]: view of the unit's master shard.
  at::Tensor grad;     // [rows, ...]: view of the unit's gradient shard.
};

struct ShardUnitOptions {
  const comm::Group* shard_group = nullptr;      // FSDP axis: weights are gathered, gradients reduce-scattered over it.
  const comm::Group* replicate_group = nullptr;  // HSDP axis: gradient shards are all-reduced over it.
  comm::Device* device = nullptr;
  Precision precision;
  Keep keep = Keep::kNothing;
};

// Parameters that are gathered together by one flat all-gather and whose gradients are reduced by one reduce-scatter.
// The layers' weights are persistent leaves; between uses their storage is empty, and it is refilled below autograd, so
// that tensors saved by a graph stay valid. All methods are called in the same order on every rank of the groups.
class ShardUnit {
 public:
  ShardUnit(std::string name, std::vector<nn::Parameter*> parameters, const ShardUnitOptions& options);

  const std::string& name() const { return name_; }
  std::vector<ShardedParameter>& parameters() { return parameters_; }
  const Precision& precision() const { return options_.precision; }
  Keep keep() const { return options_.keep; }

  // Starts gathering the weights; returns at once. Nothing to do when they are there or on their way.
  void begin_unshard();
  // Returns once the weights can be used.
  void unshard();
  // Frees the weights.
  void reshard();

  // Starts reducing one microbatch's gradients, in the order of parameters(); an undefined one counts as zero.
  // `last`: no microbatch follows in this step, so replicas are summed as well.
  void begin_reduce(std::vector<at::Tensor> gradients, bool last);
  // Adds the reduced gradients to the gradient shard and, after the last microbatch, starts the sum over replicas.
  void finish_reduce();
  // Returns once the gradient shard holds the sum over all ranks and microbatches.
  void finish_gradients();
  // The next reduced gradients replace what the gradient shard holds.
  void forget_gradients() { has_gradients_ = false; }
  void scale_gradients(double factor) { gradients_.mul_(factor); }

  // Bytes of one all-gather and of one reduce-scatter of this unit, for closed forms.
  int64_t gather_bytes() const;
  int64_t reduce_bytes() const;

 private:
  void copy_out(const at::Tensor& gathered);
  void allocate_weight(nn::Parameter& parameter, int64_t numel);
  void accumulate(const at::Tensor& reduced);
  void accumulate_local(const std::vector<at::Tensor>& gradients);

  const std::string name_;
  const ShardUnitOptions options_;
  const int world_;  // Ranks of the shard group.
  std::vector<ShardedParameter> parameters_;
  at::Tensor master_;     // [shard]: this rank's pieces, one after the other, padded.
  at::Tensor gradients_;  // [shard]: same layout.
  bool padded_ = false;   // Some rank's piece of some parameter is shorter than the others'.
  bool aliased_ = false;  // The weights are the master shard itself (one rank, same data type).
  bool direct_ = false;   // One parameter: gathered straight into the weight.
  bool unsharded_ = false;
  bool has_gradients_ = false;
  bool last_ = false;
  comm::Pending gather_;
  at::Tensor gathered_;  // [world, shard] while a gather is in flight.
  comm::Pending reduce_;
  at::Tensor pieces_;   // [world, shard]: the gradients that are being reduced.
  at::Tensor reduced_;  // [shard] while a reduction is in flight.
  comm::Pending replicate_;
  at::Tensor replicated_;  // Gradient shard in reduce precision while replicas are summed.
};

}  // namespace titan::parallel
