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
  bool backward_reads_weights = true;       // False for an embedding: its gradient needs only the tokens.
  bool layer = false;                       // It is neither an entry block of the model nor the last.
  bool as_graph = false;                    // Its passes may become device graphs, so its weights keep their addresses.
};

struct StageOptions {
  bool first = true;  // Holds the model's first block.
  bool last = true;   // Holds the last block and computes the loss.
  nn::Loss loss = nn::cross_entropy_sum;
  // model::Model::input (any shape [...]), entry_blocks, edge_rows and edge_length.
  std::function<at::Tensor(const nn::MicrobatchContext&)> input;
  size_t entry_blocks = 1;  // Only read if `first`.
  std::function<int64_t(const nn::MicrobatchContext&)> edge_rows;
  std::function<int64_t(const nn::MicrobatchContext&)> edge_length;
  // Activations between stages are [B, L / sequence_ranks, dim] with these options. Only read if there are other
  // stages.
  int64_t dim = 0;
  int64_t sequence_ranks = 1;
  at::TensorOptions activation;
  // Weight gradients are summed over the step's microbatches before reduce() reduces them over data-parallel ranks.
  // False: each microbatch's gradients are reduced.
  bool reduce_once = false;
  bool splits_backward = false;  // input_gradient() and weight_gradient() will be called.
  // Called for each unit as soon as its gradients of the step are complete. May be empty.
  std::function<void(parallel::ShardUnit&)> completed;
  // For blocks with `as_graph`; not used while the backward pass is split. Null: no graphs.
  std::shared_ptr<BlockGraphs> graphs;
};

// Runs consecutive blocks one by one, in visible order. Each block's forward builds a separate small graph from a
// detached input, and its backward runs only that graph. So gathering weights, freeing them, reducing gradients and
// recomputation are plain steps between blocks. At most two consecutive blocks have gathered weights at a time if units
// keep nothing. Shapes are those of StageRunner.
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

  // Runs all blocks in order, without graphs and each with its weights gathered. `pass` maps an activation to the next
  // one. Shapes are defined by `pass`.
  using Visit = std::function<at::Tensor(nn::Block& block, const at::Tensor& activation)>;
  at::Tensor visit(at::Tensor activation, const Visit& pass);

  const std::vector<EngineBlock>& blocks() const { return blocks_; }

 private:
  // State saved for one block until the backward pass of one microbatch.
  struct Saved {
    nn::SavedActivations kept;     // For the second pass of a recomputed block.
    at::Tensor input;              // Leaf of the block's graph: detached, [B, L, dim], or the model's input.
    torch::autograd::Edge output;  // Root of the graph, empty if the block is recomputed. Not the output itself, which
                                   // the graph keeps only if it needs it.
    std::vector<at::Tensor> gradients;  // Weights' gradients in the units' order, while some are deferred.
    nn::GradientQueue deferred;
  };
  struct Microbatch {
    nn::MicrobatchContext context;
    std::vector<Saved> blocks;
    int slot = 0;  // Among the microbatches in flight only this one has it.
  };

  void unshard(size_t index);
  void begin_unshard(size_t index);
  void begin_unshard_below(size_t index);
  void reshard_after_forward(size_t index);
  // Runs all blocks in order, each with its weights gathered and the next block's gather in flight. pass(index,
  // activation) maps a block's input to its output.
  template <typename Pass>
  at::Tensor through_blocks(at::Tensor activation, const Pass& pass);
  at::Tensor run(size_t index, const at::Tensor& input, const nn::MicrobatchContext& context);
  void check_output(size_t index, const at::Tensor& input, const at::Tensor& output) const;
  int free_slot() const;
  // Returns whether this block has trained parameters or its input's gradient is needed.
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
  // In the model's first stage, the first block with trained parameters, where backward passes end. In other stages the
  // first block, because the previous stage waits for the gradient of this stage's input.
  size_t first_trained_ = 0;
  nn::DeferredGradients deferred_;
  std::map<int, Microbatch> microbatches_;
  const EngineBlock* reducing_ = nullptr;  // Block with a reduction in flight.
  bool unreduced_ = false;                 // Weight gradients wait for reduce().
};

}  // namespace titan::runtime
