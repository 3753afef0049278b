#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/device/device.h"
#include "worker/rank/device/device_graphs.h"

namespace titan::runtime {

// Gradients from the backward pass of a block.
struct BlockGradients {
  at::Tensor input;                 // [B, T, dim]. Undefined if not requested.
  std::vector<at::Tensor> weights;  // In the order of the block's units, each shaped like its weight.
};

// Runs the passes of one stage's blocks as device graphs: one launch each instead of hundreds.
//
// A graph is bound to addresses, so each block has a pair (forward, backward) for each slot of microbatches in flight,
// with a separate input and output. A block's first passes run without graphs. Once none of those is in flight, a pass
// is captured, and it and later passes are replayed. Passes with other shapes, and blocks whose capture failed, run
// without graphs. Activations and their gradients are [B, T, dim].
//
// Memory: what a pass saves for its backward pass is in the forward graph's memory. All graphs of the device share the
// rest, which is dead when a graph ends, except for the weights' gradients, which live until the next replay.
class BlockGraphs {
 public:
  // `block`: index in the stage. `slot`: a number that no other microbatch in flight has.
  struct Place {
    size_t block = 0;
    int slot = 0;
  };
  // Maps the input to the output, both [B, T, dim] and without an autograd graph, and saves what the backward pass
  // needs.
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  // Maps the gradient of the output. `again`: it may be called once more for the same microbatch.
  using Backward = std::function<BlockGradients(const at::Tensor& gradient, bool again)>;

  // Returns null if the device has no graphs. The device must outlive this. `say`, which may be empty, is called once
  // for each block that cannot be captured.
  static std::unique_ptr<BlockGraphs> create(device::Device& device, std::function<void(const std::string&)> say);

  // `leaves_nothing`: the pass saves nothing on the device for the backward pass except its input. Maps `input` [B, T,
  // dim] to the output [B, T, dim], which the next forward pass at this place overwrites.
  at::Tensor forward(const Place& place, const std::string& name, const at::Tensor& input, bool leaves_nothing,
                     const Forward& pass);
  // Call it after forward() at the same place, with the output's gradient [B, T, dim]. The next pass of any block
  // overwrites the weights' gradients, and the next backward pass the input's.
  BlockGradients backward(const Place& place, const std::string& name, const at::Tensor& gradient,
                          const Backward& pass);

  // Returns whether a later pass overwrites this tensor, so that only a copy of it may leave the stage.
  bool overwrites(const at::Tensor& tensor) const;

 private:
  BlockGraphs(device::Device& device, device::DeviceGraphs& graphs, std::function<void(const std::string&)> say)
      : device_(device), graphs_(graphs), say_(std::move(say)) {}

  enum class Pass { kNone, kEager, kCaptured, kReplayed };
  struct Slot {
    Pass pass = Pass::kNone;   // How the forward pass ran that awaits its backward pass.
    at::Tensor input, output;  // [B, T, dim]: addresses that the graphs use.
    std::unique_ptr<device::DeviceGraph> forward, backward;
    std::vector<at::Tensor> gradients;  // Weights' gradients at the addresses that the backward graph writes.
  };
  struct Block {
    int passes = 0;     // Passes without graphs whose backward pass is done.
    int in_flight = 0;  // Passes without graphs that await their backward pass.
    bool failed = false;
    std::map<int, Slot> slots;
  };

  at::Tensor run_eagerly(Block& block, Slot& slot, const at::Tensor& input, const Forward& pass);
  at::Tensor still(const Place& place, const at::Tensor& input);
  Slot capture_forward(const Place& place, const at::Tensor& input, bool leaves_nothing, const Forward& pass);
  void capture_backward(Slot& slot, const at::Tensor& gradient, const Backward& pass);
  BlockGradients replay_backward(Slot& slot, const std::string& name, const at::Tensor& gradient);
  void give_up(Block& block, const std::string& name, const std::exception& reason);

  device::Device& device_;
  device::DeviceGraphs& graphs_;
  const std::function<void(const std::string&)> say_;
  std::map<size_t, Block> blocks_;
  at::Tensor gradient_;  // [B, T, dim]: gradient of a block's output, then of its input. All blocks use it.
};

}  // namespace titan::runtime
