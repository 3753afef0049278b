#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/mesh/reshard.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/weight_gather.h"

namespace titan::parallel {

using mesh::Reshard;

// This rank's rows of one parameter, where a row is an index of dim `dim`. A rank holds what torch.chunk along that dim
// gives it: ceil(rows / ranks) rows, and the last ranks fewer or none. In the flat shard every rank's piece is padded
// to the same size.
struct ShardedParameter {
  nn::Parameter* parameter = nullptr;
  int64_t dim = 0;
  int64_t total_rows = 0;
  int64_t row_numel = 0;
  int64_t chunk_rows = 0;  // Rows of a full piece.
  int64_t first_row = 0;   // This rank's rows are [first_row, first_row + rows) of parameter->shape.
  int64_t rows = 0;
  int64_t offset = 0;   // Start in the flat shard, in elements.
  at::Tensor value;     // stored_shape() with `rows` in dim `dim`: a view of the unit's master shard.
  at::Tensor grad;      // Same shape, a view of the gradient shard. Undefined if the parameter is frozen.
  bool leads = true;    // Among a replica's ranks with this same piece, it counts and writes the piece.
  bool primary = true;  // Same, among the ranks of all replicas.

  // Returns the start of the piece in the whole parameter, over all axes.
  std::vector<int64_t> global_offset() const;
  // Returns the shape of the piece in elements: that of `value` unless the parameter is packed.
  std::vector<int64_t> shape() const;
  // Returns this piece of `whole`, which has parameter->global_shape: a view of shape().
  at::Tensor piece_of(at::Tensor whole) const;
};

// Returns the shape in which a parameter is stored and gathered: its own, or [rows, bytes] if it is packed.
std::vector<int64_t> stored_shape(const nn::Parameter& parameter);

struct ShardUnitOptions {
  const comm::Group* shard_group = nullptr;  // FSDP axis: weights are gathered and gradients reduce-scattered over it.
  const comm::Group* replicate_group = nullptr;  // HSDP axis: gradient shards are all-reduced over it.
  const comm::Group* tensor_group = nullptr;     // Gradient shards of kPartial parameters are all-reduced over it.
  device::Device* device = nullptr;
  Precision precision;
  const GatherRecipe* gather = nullptr;  // Null: gather_cast(). Must outlive the unit.
  Reshard keep = Reshard::kAfterForward;
  int64_t dim = 0;  // Dim along which parameters are split.
  int users = 1;    // Blocks that contribute gradients. The last call of the last user reduces them, once per step.
  bool offload = false;  // Master and gradient shards stay in host memory.
};

// Parameters that one flat all-gather gathers together and whose gradients one reduce-scatter reduces. Either all are
// trained, or all are frozen: then they are only gathered and have no gradients. Packed parameters
// (nn::Parameter::packed_row) have separate units, in bytes.
//
// The layers' weights are persistent leaves. Between uses their storage is empty. It is refilled below autograd, so
// tensors saved by a graph stay valid. If the shard's type is narrower than the reduce type, gradients are summed in
// the reduce type over microbatches and the shard, tensor and replica axes, and rounded once. All methods must be
// called in the same order on every rank of the groups.
class ShardUnit {
 public:
  ShardUnit(std::string name, std::vector<nn::Parameter*> parameters, const ShardUnitOptions& options);

  const std::string& name() const { return name_; }
  std::vector<ShardedParameter>& parameters() { return parameters_; }
  const std::vector<ShardedParameter>& parameters() const { return parameters_; }
  const Precision& precision() const { return options_.precision; }
  bool frozen() const { return parameters_.front().parameter->frozen; }
  Reshard keep() const { return options_.keep; }
  int users() const { return options_.users; }
  // Adds a block that reads these parameters and contributes gradients. Weights are kept at least as long as `keep`.
  void share(Reshard keep) {
    ++options_.users;
    options_.keep = std::max(options_.keep, keep);
  }
  // Returns the bytes of each gathered weight. Empty if the weights are the master shard itself and are never gathered.
  std::vector<int64_t> weight_bytes() const;
  // Makes later gathers write into this slot, which was made for weight_bytes(). Call it before the first gather.
  void gather_into(std::shared_ptr<WeightSlot> slot) { slot_ = std::move(slot); }
  bool has_slot() const { return slot_ != nullptr; }
  // Returns this rank's gradients as one flat tensor [shard], for sums over further groups.
  at::Tensor& gradient_shard() { return gradients_; }

  // Starts gathering the weights and returns at once. Does nothing if they are gathered or being gathered.
  void begin_unshard();
  // Returns once the weights can be used. Gathers them if needed.
  void unshard();
  // Frees the weights.
  void reshard();

  // Adds one microbatch's gradients, in the order of parameters() and shaped like the unsharded weights, to those that
  // begin_reduce() will reduce. An undefined gradient counts as zero. They are held unsharded.
  void add_gradients(std::vector<at::Tensor> gradients);
  // Adds these gradients and starts reducing all gradients since the last reduction. `last`: no microbatch follows in
  // this step, so partial gradients and replicas are summed as well. With several users only the last user's call with
  // `last` reduces, because in a pipeline their microbatches interleave.
  void begin_reduce(std::vector<at::Tensor> gradients, bool last);
  // Adds the reduced gradients to the gradient shard. After the last microbatch it starts the sum over the tensor axis
  // or replicas.
  void finish_reduce();
  // After the last microbatch: waits for the sum over the tensor axis and starts the sum over replicas.
  void finish_tensor_sum();
  // Returns once the gradient shard holds the sum over all ranks and microbatches.
  void finish_gradients();
  // Returns whether the step's last gradients are reduced, so that finish_gradients() leaves the sum over the whole
  // step in the gradient shard.
  bool complete() const { return complete_; }
  // Makes the next reduced gradients replace the contents of the gradient shard.
  void reset_gradients();
  // Same, and frees its memory until then (but not host memory under offload).
  void free_gradients();

  // Return the bytes of one all-gather and one reduce-scatter of this unit, for closed forms in tests.
  int64_t gather_bytes() const;
  int64_t reduce_bytes() const;  // 0 if frozen.

 private:
  at::Device on_device() const { return options_.device->torch_device(); }
  void place(std::vector<nn::Parameter*> parameters);
  const GatherRecipe& recipe() const { return options_.gather == nullptr ? gather_cast() : *options_.gather; }
  at::ScalarType gather_dtype() const { return recipe().type(options_.precision); }
  bool gathers_numbers() const { return options_.gather == nullptr; }
  // The tensor that a weight is gathered into: the layer's leaf, or its quantised replacement.
  at::Tensor destination(const nn::Parameter& parameter) const;
  void gather_pieces();
  at::Tensor master_on_device() const;        // [shard]
  void copy_out(const at::Tensor& gathered);  // [world, shard]
  void receive_scales();
  size_t index_of(const nn::Parameter& parameter) const;
  void allocate_weight(nn::Parameter& parameter, int64_t numel);
  void free_weight(nn::Parameter& parameter);
  bool has_replicas() const { return options_.replicate_group != nullptr && options_.replicate_group->size() > 1; }
  bool open_sum();
  void round_sum();
  // The tensor that holds the gradient sum so far.
  at::Tensor& sum() { return sum_.defined() ? sum_ : gradients_; }  // [shard]
  void accumulate(const at::Tensor& reduced);                       // [shard]
  void accumulate_local(const std::vector<at::Tensor>& gradients);  // Unsharded, by parameter.
  void begin_replicate_sum();
  void allocate_gradients();

  const std::string name_;
  ShardUnitOptions options_;
  const int world_;  // Number of ranks in the shard group.
  std::vector<ShardedParameter> parameters_;
  at::Tensor master_;     // [shard]: this rank's pieces, consecutive and padded.
  at::Tensor gradients_;  // [shard]: same layout.
  at::Tensor sum_;        // [shard] before rounding to the shard's type. Undefined if rounding loses nothing.
  std::shared_ptr<WeightSlot> slot_;  // Null: each gather allocates memory.
  bool padded_ = false;               // Some rank's piece of some parameter is shorter than the others'.
  bool aliased_ = false;              // The weights are the master shard itself (one rank, same data type).
  bool direct_ = false;               // One parameter, gathered directly into the weight.
  bool rounds_once_ = false;          // The shard's type is narrower than the reduce type.
  bool unsharded_ = false;
  bool has_gradients_ = false;
  bool last_ = false;
  bool complete_ = false;
  int contributions_ = 0;          // Users that have contributed their last gradients of the step.
  int64_t partial_numel_ = 0;      // Elements of the kPartial parameters, at the start of the flat shard.
  std::vector<at::Tensor> added_;  // Unsharded gradients that wait for begin_reduce(), by parameter.
  comm::Pending gather_;
  at::Tensor gathered_;  // [world, shard] while a gather is in flight.
  comm::Pending reduce_;
  at::Tensor pieces_;   // [world, shard]: the gradients being reduced.
  at::Tensor reduced_;  // [shard] while a reduction is in flight.
  comm::Pending tensor_sum_;
  at::Tensor partial_;  // [partial_numel_] in the reduce type, while the tensor axis is summed.
  comm::Pending replicate_;
  at::Tensor replicated_;  // [shard] in the reduce type while replicas are summed.
};

}  // namespace titan::parallel
