#include "worker/runtime/block_engine.h"

#include <torch/csrc/autograd/autograd.h>

#include "worker/nn/loss.h"

namespace titan::runtime {

using parallel::Keep;
using parallel::ShardUnit;

BlockEngine::BlockEngine(std::vector<EngineBlock> blocks, std::function<void(Pass)> entered)
    : blocks_(std::move(blocks)), entered_(std::move(entered)) {
  TORCH_CHECK(!blocks_.empty(), "a model without blocks");
}

void BlockEngine::unshard(size_t index) {
  for (ShardUnit* unit : blocks_[index].units) unit->unshard();
}

void BlockEngine::begin_unshard(size_t index) {
  for (ShardUnit* unit : blocks_[index].units) unit->begin_unshard();
}

// The next block whose backward pass needs weights.
void BlockEngine::begin_unshard_below(size_t index) {
  if (index > 0 && blocks_[index - 1].backward_reads_weights) begin_unshard(index - 1);
}

at::Tensor BlockEngine::forward(size_t index, const at::Tensor& input, const nn::MicrobatchContext& context,
                                Saved& saved) {
  const EngineBlock& entry = blocks_[index];
  saved.input = input.detach();
  if (at::isFloatingType(input.scalar_type())) saved.input.set_requires_grad(true);
  if (entry.recompute) {
    at::NoGradGuard no_grad;
    return entry.block->forward(saved.input, context);
  }
  saved.output = entry.block->forward(saved.input, context);
  return saved.output;
}

at::Tensor BlockEngine::forward_all(const nn::MicrobatchContext& context, std::vector<Saved>& saved) {
  const size_t count = blocks_.size();
  at::Tensor activation = context.tokens;
  for (size_t i = 0; i < count; ++i) {
    unshard(i);
    if (i + 1 < count) begin_unshard(i + 1);
    activation = forward(i, activation, context, saved[i]);
    for (ShardUnit* unit : blocks_[i].units) {
      if (unit->keep() == Keep::kNothing) unit->reshard();
    }
  }
  return activation;
}

at::Tensor BlockEngine::train(const nn::MicrobatchContext& context, const std::function<int64_t()>& global_tokens,
                              bool last) {
  at::AutoGradMode with_grad(true);
  if (entered_) entered_(Pass::kForward);
  std::vector<Saved> saved(blocks_.size());
  at::Tensor loss_sum;
  {
    // The loss belongs to the last block's graph, so that the logits are freed with it.
    const at::Tensor logits = forward_all(context, saved);
    loss_sum = nn::cross_entropy_sum(logits, context.labels);
  }
  saved.back().output = loss_sum / static_cast<double>(global_tokens());
  const at::Tensor result = loss_sum.detach();
  loss_sum.reset();

  if (entered_) entered_(Pass::kBackward);
  at::Tensor gradient;
  for (size_t i = blocks_.size(); i-- > 0;) {
    gradient = backward(i, std::move(saved[i]), gradient, context, last);
  }
  for (ShardUnit* unit : blocks_.front().units) unit->finish_reduce();
  return result;
}

at::Tensor BlockEngine::backward(size_t index, Saved saved, const at::Tensor& output_gradient,
                                 const nn::MicrobatchContext& context, bool last) {
  const EngineBlock& entry = blocks_[index];
  if (entry.backward_reads_weights || entry.recompute) unshard(index);
  begin_unshard_below(index);
  if (entry.recompute) saved.output = entry.block->forward(saved.input, context);

  std::vector<at::Tensor> inputs;
  if (saved.input.requires_grad()) inputs.push_back(saved.input);
  const size_t first_weight = inputs.size();
  for (ShardUnit* unit : entry.units) {
    for (auto& placed : unit->parameters()) inputs.push_back(placed.parameter->weight);
  }
  std::vector<at::Tensor> output_gradients;
  if (output_gradient.defined()) output_gradients.push_back(output_gradient);
  std::vector<at::Tensor> gradients = torch::autograd::grad({saved.output}, inputs, output_gradients,
                                                            /*retain_graph=*/false, /*create_graph=*/false,
                                                            /*allow_unused=*/true);
  saved = {};  // The graph and its activations go before the reduction takes memory.
  inputs.clear();
  at::Tensor input_gradient = first_weight > 0 ? gradients[0] : at::Tensor();
  gradients.erase(gradients.begin(), gradients.begin() + static_cast<int64_t>(first_weight));

  // One reduction in flight: the block above finished its while this one computed.
  if (index + 1 < blocks_.size()) {
    for (ShardUnit* unit : blocks_[index + 1].units) unit->finish_reduce();
  }
  reduce(index, std::move(gradients), last);
  for (ShardUnit* unit : entry.units) {
    if (unit->keep() != Keep::kUntilStepEnd) unit->reshard();
  }
  return input_gradient;
}

void BlockEngine::reduce(size_t index, std::vector<at::Tensor> gradients, bool last) {
  auto next = gradients.begin();
  for (ShardUnit* unit : blocks_[index].units) {
    const auto count = static_cast<int64_t>(unit->parameters().size());
    std::vector<at::Tensor> own(std::make_move_iterator(next), std::make_move_iterator(next + count));
    next += count;
    unit->begin_reduce(std::move(own), last);
  }
}

at::Tensor BlockEngine::evaluate(const nn::MicrobatchContext& context) {
  at::NoGradGuard no_grad;
  const size_t count = blocks_.size();
  at::Tensor activation = context.tokens;
  for (size_t i = 0; i < count; ++i) {
    unshard(i);
    if (i + 1 < count) begin_unshard(i + 1);
    activation = blocks_[i].block->forward(activation, context);
    for (ShardUnit* unit : blocks_[i].units) {
      if (unit->keep() == Keep::kNothing) unit->reshard();
    }
  }
  return nn::cross_entropy_sum(activation, context.labels);
}

void BlockEngine::finish_step() {
  // From the last block down, the order in which the reductions were started.
  for (size_t i = blocks_.size(); i-- > 0;) {
    for (ShardUnit* unit : blocks_[i].units) unit->finish_gradients();
  }
  release();
}

void BlockEngine::release() {
  for (EngineBlock& entry : blocks_) {
    for (ShardUnit* unit : entry.units) unit->reshard();
  }
}

}  // namespace titan::runtime
