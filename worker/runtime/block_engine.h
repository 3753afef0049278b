#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "worker/nn/block.h"
#include "worker/parallel/shard_unit.h"

namespace titan::runtime {

struct EngineBlock {
  nn::Block* block = nullptr;
  std::vector<parallel::ShardUnit*> units;  // Together they hold the block's parameters.
  bool recompute = false;                   // Run forward again in the backward pass.
  bool backward_reads_weights = true;       // False for an embedding: its gradient needs the tokens only.
};

// Drives the blocks one by one, in visible order. Each block's forward builds its own small graph from a detached
// input, and its backward runs that graph alone, so that gathering weights, freeing them, reducing gradients and
// recomputation are plain steps between blocks. At any time at most two consecutive blocks have gathered weights when
// units keep nothing.
class BlockEngine {
 public:
  enum class Pass { kForward, kBackward };
  // `entered` is told when a pass over the blocks begins; may be empty.
  explicit BlockEngine(std::vector<EngineBlock> blocks, std::function<void(Pass)> entered = {});

  // Forward and backward of one microbatch; its gradients are added to the units'. The loss whose gradient is taken is
  // the sum of cross-entropies divided by global_tokens(), which is asked for once, before the backward pass. Returns
  // the undivided sum of this rank's cross-entropies (a detached scalar). `last`: the step's last microbatch.
  at::Tensor train(const nn::MicrobatchContext& context, const std::function<int64_t()>& global_tokens, bool last);

  // Forward only; the sum of cross-entropies.
  at::Tensor evaluate(const nn::MicrobatchContext& context);

  // Waits until every unit's gradient shard is complete, and frees weights kept for the step.
  void finish_step();
  // Frees gathered weights, after evaluate().
  void release();

 private:
  struct Saved {
    at::Tensor input;   // Leaf of the block's graph (detached).
    at::Tensor output;  // Undefined when the block is recomputed.
  };

  void unshard(size_t index);
  void begin_unshard(size_t index);
  void begin_unshard_below(size_t index);
  at::Tensor forward(size_t index, const at::Tensor& input, const nn::MicrobatchContext& context, Saved& saved);
  at::Tensor forward_all(const nn::MicrobatchContext& context, std::vector<Saved>& saved);
  // Gradient with respect to the block's input; the parameters' gradients go to the units.
  at::Tensor backward(size_t index, Saved saved, const at::Tensor& output_gradient,
                      const nn::MicrobatchContext& context, bool last);
  void reduce(size_t index, std::vector<at::Tensor> gradients, bool last);

  std::vector<EngineBlock> blocks_;
  std::function<void(Pass)> entered_;
};

}  // namespace titan::runtime
