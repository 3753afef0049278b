#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/parallel/activation_checkpoint.h"
#include "worker/rank/parallel/shard_unit.h"
#include "worker/rank/runtime/engine/block_graphs.h"
#include "worker/rank/runtime/engine/executor.h"

namespace titan::runtime {

struct EngineBlock {
  nn::Block* block = nullptr;
  std::vector<parallel::ShardUnit*> units;  // Together they hold the block's parameters.
  parallel::BlockCheckpoint checkpoint;     // Whether to run forward again in the backward pass.
  bool backward_reads_weights = true;       // False for an embedding: its gradient needs the tokens only.
  bool as_graph = false;  // Its passes may become graphs of the device: its weights stay at their addresses.
};

struct StageOptions {
  bool first = true;  // Holds the model's first block.
  bool last = true;   // Holds its last block, and computes the loss.
  nn::Loss loss = nn::cross_entropy_sum;
  // Activations between stages: [B, T / sequence_ranks, dim] with these options. Only read beside other stages.
  int64_t dim = 0;
  int64_t sequence_ranks = 1;
  at::TensorOptions activation;
  // Weight gradients are summed over the step's microbatches before they are reduced over data-parallel ranks, by
  // reduce(); else each microbatch's are reduced.
  bool reduce_once = false;
  bool splits_backward = false;  // input_gradient() and weight_gradient() will be called.
  // Told of each unit as soon as its gradients of the step are complete; may be empty.
  std::function<void(parallel::ShardUnit&)> completed;
  // For blocks with `as_graph`; not while the backward pass is split. Null: none is.
  std::shared_ptr<BlockGraphs> graphs;
};

// Drives consecutive blocks one by one, in visible order. Each block's forward builds its own small graph from a
// detached input, and its backward runs that graph alone, so that gathering weights, freeing them, reducing gradients
// and recomputation are plain steps between blocks. At any time at most two consecutive blocks have gathered weights
// when units keep nothing.
class Stage : public StageRunner {
 public:
  Stage(std::vector<EngineBlock> blocks, StageOptions options);

  at::Tensor empty_input(const nn::MicrobatchContext& context) const override;
  void expect_forward() override;
  void expect_backward() override;
  at::Tensor forward(int microbatch, const nn::MicrobatchContext& context, at::Tensor input) override;
  at::Tensor evaluate(const nn::MicrobatchContext& context, at::Tensor input) override;
  at::Tensor backward(int microbatch, at::Tensor output_gradient, bool last) override;
  at::Tensor input_gradient(int microbatch, at::Tensor output_gradient) override;
  void weight_gradient(int microbatch, bool last) override;
  void reduce() override;

  // All blocks in order and without graphs, each with its weights there: `pass` makes its result of the one before.
  using Visit = std::function<at::Tensor(nn::Block& block, const at::Tensor& activation)>;
  at::Tensor visit(at::Tensor activation, const Visit& pass);

  const std::vector<EngineBlock>& blocks() const { return blocks_; }

 private:
  // What is kept of one block for the backward pass of one microbatch.
  struct Saved {
    nn::SavedActivations kept;     // For the block's second pass, when it is recomputed.
    at::Tensor input;              // Leaf of the block's graph (detached).
    torch::autograd::Edge output;  // Root of the graph; none when the block is recomputed. Not the output itself, which
                                   // the graph keeps only if it needs it.
    std::vector<at::Tensor> gradients;  // Of the weights, in the units' order, while some of them are deferred.
    nn::GradientQueue deferred;
  };
  struct Microbatch {
    nn::MicrobatchContext context;
    std::vector<Saved> blocks;
    int slot = 0;  // Of those in flight, only this one has it.
  };

  void unshard(size_t index);
  void begin_unshard(size_t index);
  void begin_unshard_below(size_t index);
  void reshard_after_forward(size_t index);
  // All blocks in order, each with its weights there and the next one's on their way; pass(index, activation) is what
  // a block makes of its input.
  template <typename Pass>
  at::Tensor through_blocks(at::Tensor activation, const Pass& pass);
  at::Tensor run(size_t index, const at::Tensor& input, const nn::MicrobatchContext& context);
  void check_output(size_t index, const at::Tensor& input, const at::Tensor& output) const;
  int free_slot() const;
  // Whether anything that is trained is in this block, or its input's gradient is asked for.
  bool goes_back(size_t index) const { return index >= first_trained_; }
  bool wants_input_gradient(size_t index) const { return !options_.first || index > first_trained_; }
  bool as_graph(size_t index) const {
    return options_.graphs != nullptr && blocks_[index].as_graph && wants_input_gradient(index);
  }
  at::Tensor to_keep(const at::Tensor& result) const;
  at::Tensor first_pass(size_t index, Saved& saved, const nn::MicrobatchContext& context);
  torch::autograd::Edge second_pass(size_t index, Saved& saved, nn::MicrobatchContext context);
  at::Tensor forward(size_t index, const at::Tensor& input, Microbatch& microbatch);
  at::Tensor forward_pass(size_t index, const at::Tensor& input, Saved& saved, const nn::MicrobatchContext& context);
  BlockGradients gradient_pass(size_t index, Saved& saved, const nn::MicrobatchContext& context,
                               const at::Tensor& gradient, bool split, bool again);
  at::Tensor backward(size_t index, Microbatch& microbatch, const at::Tensor& gradient, bool split);
  at::Tensor backward_pass(Microbatch& microbatch, at::Tensor gradient, bool split, bool last);
  Microbatch& find(int microbatch);
  void deliver(size_t index, std::vector<at::Tensor> gradients, bool last);
  void finish_reduction();

  std::vector<EngineBlock> blocks_;
  const StageOptions options_;
  // Of the model's first stage, the block at which backward passes end; of others the first, since what comes before
  // waits for the gradient of this stage's input.
  size_t first_trained_ = 0;
  nn::DeferredGradients deferred_;
  std::map<int, Microbatch> microbatches_;
  const EngineBlock* reducing_ = nullptr;  // Block whose gradients are being reduced.
  bool unreduced_ = false;                 // Weight gradients wait for reduce().
};

}  // namespace titan::runtime
