#include "worker/rank/runtime/engine/model_slices.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/rank/nn/nf4.h"

namespace titan::runtime {

using parallel::ShardedParameter;

namespace {

// Describes how checkpoints read and write a state's values.
std::shared_ptr<const checkpoint::StateEncoding> form_of(const optim::SlotState::Named& state) {
  if (state.form == nullptr) return nullptr;
  return std::make_shared<checkpoint::StateEncoding>(
      checkpoint::StateEncoding{.shape = state.form->shape, .numbers = state.form->numbers, .kept = state.form->kept});
}

// Replicas hold the same pieces. Each writes a share of them, so that every rank is a writer: each piece is assigned to
// the replica with the fewest bytes so far. All replicas compute the same assignment.
void spread_over_replicas(std::vector<checkpoint::Slice>& slices, const comm::Group& replicas) {
  std::vector<int64_t> bytes(static_cast<size_t>(replicas.size()));
  for (checkpoint::Slice& slice : slices) {
    if (!slice.primary) continue;
    const auto fewest = std::min_element(bytes.begin(), bytes.end());
    *fewest += static_cast<int64_t>(slice.local.nbytes());
    slice.primary = fewest - bytes.begin() == replicas.rank();
  }
}

// Sets `primary` for one replica; see spread_over_replicas().
checkpoint::Slice slice_of(const std::string& prefix, const ShardedParameter& placed, const at::Tensor& local) {
  return {prefix + placed.parameter->fqn, placed.parameter->global_shape, placed.global_offset(), local, placed.leads};
}

}  // namespace

std::vector<checkpoint::Slice> trained_slices(const std::vector<ShardedParameter*>& trained,
                                              optim::Optimizer* optimizer, const comm::Group& replicas) {
  std::vector<checkpoint::Slice> all;
  for (const ShardedParameter* one : trained) all.push_back(slice_of("model.", *one, one->value));
  for (size_t i = 0; optimizer != nullptr && i < trained.size(); ++i) {
    for (const optim::SlotState::Named& state : optimizer->states()[i].tensors) {
      all.push_back(slice_of(absl::StrCat("optim.", state.name, "."), *trained[i], state.value));
      all.back().form = form_of(state);
    }
  }
  spread_over_replicas(all, replicas);
  return all;
}

std::vector<checkpoint::Slice> frozen_slices(const std::vector<ShardedParameter*>& parameters) {
  std::vector<checkpoint::Slice> all;
  for (const ShardedParameter* placed : parameters) {
    if (!placed->parameter->frozen) continue;
    checkpoint::Slice& slice = all.emplace_back(slice_of("model.", *placed, placed->value));
    slice.primary = placed->primary;
    if (placed->parameter->packed_row == 0) continue;
    slice.local = at::empty(placed->shape(), at::TensorOptions(at::kFloat).device(at::kMeta));
    slice.store = [value = placed->value](const at::Tensor& numbers) {
      nn::nf4_pack(numbers.to(value.device()), value);
    };
  }
  return all;
}

std::vector<checkpoint::Slice> buffer_slices(const std::vector<nn::Block*>& blocks, const comm::DeviceMesh& mesh) {
  std::vector<checkpoint::Slice> all;
  const mesh::Coordinate place = mesh.mesh().coordinate(mesh.rank());
  const bool first_of_stage = place.dp_replicate == 0 && place.dp_shard == 0 && place.cp == 0 && place.tp == 0;
  for (nn::Block* block : blocks) {
    for (const nn::Buffer& buffer : block->buffers()) {
      all.push_back({"model." + buffer.fqn, buffer.value.sizes().vec(), std::vector<int64_t>(buffer.value.dim(), 0),
                     buffer.value, first_of_stage});
    }
  }
  return all;
}

}  // namespace titan::runtime
