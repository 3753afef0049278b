#include "worker/rank/runtime/engine/block_graphs.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/device/trace_scope.h"

namespace titan::runtime {
namespace {

// Passes of a block before one is captured, so that libraries have created their handles and counters their tensors.
constexpr int kWarmUp = 2;

bool alike(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() && one.device() == other.device();
}

bool same_place(const at::Tensor& one, const at::Tensor& other) {
  return other.defined() && one.const_data_ptr() == other.const_data_ptr() && one.strides() == other.strides();
}

void put(at::Tensor& target, const at::Tensor& value) {
  if (!same_place(value, target)) target.copy_(value);
}

at::Tensor dense_like(const at::Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); }

// Returns a tensor with the same address and values that does not own the memory.
at::Tensor address_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

}  // namespace

std::unique_ptr<BlockGraphs> BlockGraphs::create(device::Device& device, std::function<void(const std::string&)> say) {
  auto* graphs = dynamic_cast<device::DeviceGraphs*>(&device);
  if (graphs == nullptr) return nullptr;
  return std::unique_ptr<BlockGraphs>(new BlockGraphs(device, *graphs, std::move(say)));
}

at::Tensor BlockGraphs::run_eagerly(Block& block, Slot& slot, const at::Tensor& input, const Forward& pass) {
  ++block.in_flight;
  slot.pass = Pass::kEager;
  return pass(input);
}

// Returns a tensor that keeps its address and has the input's values: the input itself if the previous block's graph
// writes it.
at::Tensor BlockGraphs::still(const Place& place, const at::Tensor& input) {
  if (place.block > 0) {
    const Slot& before = blocks_[place.block - 1].slots[place.slot];
    if (before.pass != Pass::kEager && same_place(input, before.output)) return before.output;
  }
  at::Tensor copy = dense_like(input);
  copy.copy_(input);
  return copy;
}

BlockGraphs::Slot BlockGraphs::capture_forward(const Place& place, const at::Tensor& input, bool leaves_nothing,
                                               const Forward& pass) {
  Slot slot;
  slot.input = still(place, input);
  if (leaves_nothing) slot.output = dense_like(input);
  const auto work = [&] {
    const device::CaptureGuard capturing;
    const at::Tensor output = pass(slot.input);
    TORCH_CHECK(alike(output, input), "its output differs from its input in shape, type or device");
    if (leaves_nothing) {
      slot.output.copy_(output);
    } else {
      slot.output = output;
    }
  };
  slot.forward = graphs_.capture(work, leaves_nothing ? device::GraphMemory::kShared : device::GraphMemory::kOwn);
  slot.pass = Pass::kCaptured;
  return slot;
}

at::Tensor BlockGraphs::forward(const Place& place, const std::string& name, const at::Tensor& input,
                                bool leaves_nothing, const Forward& pass) {
  Block& block = blocks_[place.block];
  Slot& slot = block.slots[place.slot];
  if (slot.backward != nullptr) {
    if (!alike(input, slot.input)) return run_eagerly(block, slot, input, pass);
    put(slot.input, input);
    slot.pass = Pass::kReplayed;
  } else {
    // A plain pass in flight shares the weights' autograd nodes, which belong to the stream that it ran on.
    const bool ready = !block.failed && block.passes >= kWarmUp && block.in_flight == 0;
    if (!ready || (gradient_.defined() && !alike(input, gradient_))) return run_eagerly(block, slot, input, pass);
    try {
      slot = capture_forward(place, input, leaves_nothing, pass);
    } catch (const std::exception& reason) {
      give_up(block, name, reason);
      return run_eagerly(block, slot, input, pass);
    }
  }
  const device::TraceScope trace([&] { return name + " as a graph"; });
  slot.forward->replay();
  return slot.output;
}

void BlockGraphs::capture_backward(Slot& slot, const at::Tensor& gradient, const Backward& pass) {
  if (!gradient_.defined()) gradient_ = dense_like(slot.input);
  put(gradient_, gradient);
  std::vector<at::Tensor> weights;
  const auto work = [&] {
    const device::CaptureGuard capturing;
    BlockGradients gradients = pass(gradient_, /*again=*/true);
    TORCH_CHECK(gradients.input.defined() && alike(gradients.input, gradient_),
                "its input's gradient differs from its output's in shape, type or device");
    weights = std::move(gradients.weights);
    for (at::Tensor& one : weights) {
      if (one.defined() && one.is_alias_of(gradient_)) one = one.clone();
    }
    put(gradient_, gradients.input);
  };
  slot.backward = graphs_.capture(work, device::GraphMemory::kShared);
  for (const at::Tensor& one : weights) slot.gradients.push_back(address_of(one));
}

BlockGradients BlockGraphs::replay_backward(Slot& slot, const std::string& name, const at::Tensor& gradient) {
  const device::TraceScope trace([&] { return name + " backward as a graph"; });
  put(gradient_, gradient);
  slot.backward->replay();
  BlockGradients result{.input = gradient_, .weights = {}};
  // Separate tensors, so that autograd does not reuse this memory.
  for (const at::Tensor& one : slot.gradients) result.weights.push_back(one.defined() ? one.detach() : one);
  return result;
}

BlockGradients BlockGraphs::backward(const Place& place, const std::string& name, const at::Tensor& gradient,
                                     const Backward& pass) {
  at::NoGradGuard no_grad;
  Block& block = blocks_[place.block];
  Slot& slot = block.slots[place.slot];
  switch (std::exchange(slot.pass, Pass::kNone)) {
    case Pass::kReplayed:
      return replay_backward(slot, name, gradient);
    case Pass::kCaptured:
      try {
        capture_backward(slot, gradient, pass);
      } catch (const std::exception& reason) {
        give_up(block, name, reason);
        break;
      }
      return replay_backward(slot, name, gradient);
    case Pass::kEager:
      --block.in_flight;
      ++block.passes;
      return pass(gradient, /*again=*/false);
    case Pass::kNone:
      TORCH_CHECK(false, name, ": a backward pass without its forward pass");
  }
  // The forward pass ran as a graph and this pass does not. It belongs to the stream on which the graph was captured.
  device_.synchronize();
  BlockGradients gradients = pass(gradient, /*again=*/false);
  device_.synchronize();
  slot = {};
  return gradients;
}

void BlockGraphs::give_up(Block& block, const std::string& name, const std::exception& reason) {
  block.failed = true;
  if (!say_) return;
  say_(
      absl::StrCat("compile: ", name, " runs operation by operation, not as a device graph: ", comm::describe(reason)));
}

bool BlockGraphs::overwrites(const at::Tensor& tensor) const {
  const auto is = [&](const at::Tensor& own) { return own.defined() && tensor.is_alias_of(own); };
  if (!tensor.defined() || is(gradient_)) return tensor.defined();
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& block) {
    return std::any_of(block.second.slots.begin(), block.second.slots.end(),
                       [&](const auto& slot) { return is(slot.second.output); });
  });
}

}  // namespace titan::runtime
