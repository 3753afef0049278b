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

// This rank's rows of one parameter; a row is an index of dim `dim`. A rank holds what torch.chunk along that dim gives
// it: ceil(rows / ranks) rows, the last ranks fewer or none; in the flat shard every rank's piece is padded to the same
// size.
struct ShardedParameter {
  nn::Parameter* parameter = nullptr;
  int64_t dim = 0;
  int64_t total_rows = 0;
  int64_t row_numel = 0;
  int64_t chunk_rows = 0;  // Rows of a full piece.
  int64_t first_row = 0;   // This rank's rows are [first_row, first_row + rows) of parameter->shape.
  int64_t rows = 0;
  int64_t offset = 0;   // Start in the flat shard, in elements.
  at::Tensor value;     // stored_shape() with `rows` in dim `dim`: view of the unit's master shard.
  at::Tensor grad;      // The same of the unit's gradient shard; undefined when the parameter is frozen.
  bool leads = true;    // Of the ranks of one replica that hold this same piece, the one that counts and writes it.
  bool primary = true;  // The same of all replicas.

  // Where the piece starts in the whole parameter, over all axes.
  std::vector<int64_t> global_offset() const;
  // The piece's shape in numbers: that of `value` unless the parameter is packed.
  std::vector<int64_t> shape() const;
  // The piece of a tensor of the whole parameter's shape.
  at::Tensor piece_of(at::Tensor whole) const;
};

// What is kept and gathered of a parameter: its shape, or rows of bytes of a packed one.
std::vector<int64_t> stored_shape(const nn::Parameter& parameter);

struct ShardUnitOptions {
  const comm::Group* shard_group = nullptr;      // FSDP axis: weights are gathered, gradients reduce-scattered over it.
  const comm::Group* replicate_group = nullptr;  // HSDP axis: gradient shards are all-reduced over it.
  const comm::Group* tensor_group = nullptr;     // Gradient shards of kPartial parameters are all-reduced over it.
  device::Device* device = nullptr;
  Precision precision;
  const GatherRecipe* gather = nullptr;  // Null: gather_cast(). It outlives the unit.
  Reshard keep = Reshard::kAfterForward;
  int64_t dim = 0;       // Along which parameters are cut.
  int users = 1;         // Blocks that bring gradients: reduced once a step, with the last of the last user.
  bool offload = false;  // Master and gradient shards stay in the host's memory.
};

// Parameters that are gathered together by one flat all-gather and whose gradients are reduced by one reduce-scatter.
// All of them are trained, or all are frozen: then they are only gathered, and there are no gradients. Packed ones
// (nn::Parameter::packed_row) have a unit of bytes.
// The layers' weights are persistent leaves; between uses their storage is empty, and it is refilled below autograd, so
// that tensors saved by a graph stay valid. Where the shard's type holds less than the wire's, gradients are summed in
// the wire's over microbatches, the shard, tensor and replica axes, and rounded once. All methods are called in the
// same order on every rank of the groups.
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
  // One more block reads these parameters and brings gradients; the weights stay as long as it says.
  void share(Reshard keep) {
    ++options_.users;
    options_.keep = std::max(options_.keep, keep);
  }
  // Bytes of each gathered weight; none where weights are the master shard itself and never move.
  std::vector<int64_t> weight_bytes() const;
  // Before the first gather: weights are gathered into this slot of weight_bytes() from now on.
  void gather_into(std::shared_ptr<WeightSlot> slot) { slot_ = std::move(slot); }
  bool has_slot() const { return slot_ != nullptr; }
  // This rank's gradients as one flat tensor, for sums beyond the groups above.
  at::Tensor& gradient_shard() { return gradients_; }

  // Starts gathering the weights; returns at once. Nothing to do when they are there or on their way.
  void begin_unshard();
  // Returns once the weights can be used.
  void unshard();
  // Frees the weights.
  void reshard();

  // Adds one microbatch's gradients, in the order of parameters(), to what begin_reduce() will reduce; an undefined one
  // counts as zero. They are held unsharded.
  void add_gradients(std::vector<at::Tensor> gradients);
  // Adds these gradients and starts reducing all that came since the last reduction. `last`: no microbatch follows in
  // this step, so partial gradients and replicas are summed as well. With several users, only the last call with `last`
  // of all of them reduces: in a pipeline their microbatches need not come in turn.
  void begin_reduce(std::vector<at::Tensor> gradients, bool last);
  // Adds the reduced gradients to the gradient shard and, after the last microbatch, starts the sum over the tensor
  // axis or replicas.
  void finish_reduce();
  // After the last microbatch: waits for the sum over the tensor axis and starts the one over replicas.
  void finish_tensor_sum();
  // Returns once the gradient shard holds the sum over all ranks and microbatches.
  void finish_gradients();
  // Whether finish_gradients() has left the sum over the whole step there.
  bool complete() const { return complete_; }
  // The next reduced gradients replace what the gradient shard holds.
  void forget_gradients();
  // The same, and its memory goes until then (not the host's under offload).
  void free_gradients();

  // Bytes of one all-gather and of one reduce-scatter of this unit, for closed forms.
  int64_t gather_bytes() const;
  int64_t reduce_bytes() const;  // None of a frozen one.

 private:
  at::Device on_device() const { return options_.device->torch_device(); }
  void place(std::vector<nn::Parameter*> parameters);
  const GatherRecipe& recipe() const { return options_.gather == nullptr ? gather_cast() : *options_.gather; }
  at::ScalarType travels_as() const { return recipe().type(options_.precision); }
  bool gathers_numbers() const { return options_.gather == nullptr; }
  // Where a weight is gathered to: the layer's leaf, or what stands for it quantised.
  at::Tensor destination(const nn::Parameter& parameter) const;
  void gather_pieces();
  at::Tensor master_on_device() const;
  void copy_out(const at::Tensor& gathered);
  void receive_scales();
  size_t index_of(const nn::Parameter& parameter) const;
  void allocate_weight(nn::Parameter& parameter, int64_t numel);
  void free_weight(nn::Parameter& parameter);
  bool has_replicas() const { return options_.replicate_group != nullptr && options_.replicate_group->size() > 1; }
  bool open_sum();
  void round_sum();
  // What gradients have been added up in so far.
  at::Tensor& sum() { return sum_.defined() ? sum_ : gradients_; }
  void accumulate(const at::Tensor& reduced);
  void accumulate_local(const std::vector<at::Tensor>& gradients);
  void begin_replicate_sum();
  void allocate_gradients();

  const std::string name_;
  ShardUnitOptions options_;
  const int world_;  // Ranks of the shard group.
  std::vector<ShardedParameter> parameters_;
  at::Tensor master_;     // [shard]: this rank's pieces, one after the other, padded.
  at::Tensor gradients_;  // [shard]: same layout.
  at::Tensor sum_;        // The same before it is rounded to the shard's type; none where that loses nothing.
  std::shared_ptr<WeightSlot> slot_;  // Null: gathered weights get fresh memory each time.
  bool padded_ = false;               // Some rank's piece of some parameter is shorter than the others'.
  bool aliased_ = false;              // The weights are the master shard itself (one rank, same data type).
  bool direct_ = false;               // One parameter: gathered straight into the weight.
  bool rounds_once_ = false;          // The shard's type holds less than the wire's.
  bool unsharded_ = false;
  bool has_gradients_ = false;
  bool last_ = false;
  bool complete_ = false;
  int contributions_ = 0;          // Users that brought their last gradients of the step.
  int64_t partial_numel_ = 0;      // The flat shard begins with the kPartial parameters.
  std::vector<at::Tensor> added_;  // Unsharded gradients that wait for begin_reduce(), by parameter.
  comm::Pending gather_;
  at::Tensor gathered_;  // [world, shard] while a gather is in flight.
  comm::Pending reduce_;
  at::Tensor pieces_;   // [world, shard]: the gradients that are being reduced.
  at::Tensor reduced_;  // [shard] while a reduction is in flight.
  comm::Pending tensor_sum_;
  at::Tensor
      partial_;  // Gradient shard of the kPartial parameters in reduce precision while the tensor axis is summed.
  comm::Pending replicate_;
  at::Tensor replicated_;  // Gradient shard in reduce precision while replicas are summed.
};

}  // namespace titan::parallel
