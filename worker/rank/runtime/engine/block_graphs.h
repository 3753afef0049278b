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

// What a backward pass of a block brings.
struct BlockGradients {
  at::Tensor input;                 // Undefined: nobody asked.
  std::vector<at::Tensor> weights;  // In the order of the block's units.
};

// The passes of one stage's blocks as graphs of the device: one launch each instead of hundreds.
//
// A graph is bound to addresses, so there is a pair of them (forward, backward) for each block and each place among the
// microbatches in flight, with an input and an output of their own. A block's first passes run as they are; once none
// of those is in flight, a pass is captured and then replayed, and from then on replayed. What is not captured runs as
// it is: passes of other shapes, and a block of which a capture failed.
//
// Memory: what a pass leaves for its backward pass is in memory of the forward graph. Everything else is shared by all
// graphs of the device, and dead when one of them ends, except the weights' gradients: they live until the next replay.
class BlockGraphs {
 public:
  // `block`: index in the stage. `slot`: no other microbatch in flight has this number.
  struct Place {
    size_t block = 0;
    int slot = 0;
  };
  // From the input to the output, both without a graph; keeps for the backward pass what that needs.
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  // From the gradient of the output. `again`: it may be called once more for the same microbatch.
  using Backward = std::function<BlockGradients(const at::Tensor& gradient, bool again)>;

  // Null where the device has no graphs. It must outlive this. `say` is told once of each block that
  // cannot be captured; may be empty.
  static std::unique_ptr<BlockGraphs> create(device::Device& device, std::function<void(const std::string&)> say);

  // `leaves_nothing`: the pass leaves nothing on the device for the backward pass but its input. The result is
  // overwritten by the next forward pass at this place.
  at::Tensor forward(const Place& place, const std::string& name, const at::Tensor& input, bool leaves_nothing,
                     const Forward& pass);
  // After forward() at the same place. The weights' gradients are overwritten by the next pass of any block, the
  // input's by the next backward pass.
  BlockGradients backward(const Place& place, const std::string& name, const at::Tensor& gradient,
                          const Backward& pass);

  // Whether a later pass overwrites this tensor: a copy of it must leave the stage.
  bool overwrites(const at::Tensor& tensor) const;

 private:
  BlockGraphs(device::Device& device, device::DeviceGraphs& graphs, std::function<void(const std::string&)> say)
      : device_(device), graphs_(graphs), say_(std::move(say)) {}

  enum class Pass { kNone, kPlain, kCaptured, kReplayed };
  struct Slot {
    Pass pass = Pass::kNone;   // How the forward pass ran whose backward pass is to come.
    at::Tensor input, output;  // Of the graphs.
    std::unique_ptr<device::DeviceGraph> forward, backward;
    std::vector<at::Tensor> gradients;  // Of the weights: where the backward graph writes them.
  };
  struct Block {
    int passes = 0;     // Whose backward pass is done, as they are.
    int in_flight = 0;  // Of those: whose backward pass is to come.
    bool failed = false;
    std::map<int, Slot> slots;
  };

  at::Tensor plain(Block& block, Slot& slot, const at::Tensor& input, const Forward& pass);
  at::Tensor still(const Place& place, const at::Tensor& input);
  Slot capture_forward(const Place& place, const at::Tensor& input, bool leaves_nothing, const Forward& pass);
  void capture_backward(Slot& slot, const at::Tensor& gradient, const Backward& pass);
  BlockGradients replay_backward(Slot& slot, const std::string& name, const at::Tensor& gradient);
  void give_up(Block& block, const std::string& name, const std::exception& reason);

  device::Device& device_;
  device::DeviceGraphs& graphs_;
  const std::function<void(const std::string&)> say_;
  std::map<size_t, Block> blocks_;
  at::Tensor gradient_;  // Of a block's output, then of its input: all blocks' have one shape.
};

}  // namespace titan::runtime
