#include "worker/rank/runtime/engine/stage.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

using parallel::Reshard;
using parallel::ShardUnit;

namespace {

// Returns the trained weights of a block, in the order of its units.
std::vector<const nn::Parameter*> parameters_of(const EngineBlock& entry) {
  std::vector<const nn::Parameter*> all;
  for (ShardUnit* unit : entry.units) {
    if (unit->frozen()) continue;
    for (auto& placed : unit->parameters()) all.push_back(placed.parameter);
  }
  return all;
}

// Works like torch::autograd::grad() from a root whose tensor has been freed. Leaves outside the graph get an undefined
// gradient.
std::vector<at::Tensor> gradients_of(const torch::autograd::Edge& root, const at::Tensor& root_gradient,
                                     const std::vector<at::Tensor>& leaves, bool keep_graph) {
  torch::autograd::edge_list targets;
  for (const at::Tensor& leaf : leaves) {
    auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    if (!accumulator) accumulator = std::make_shared<torch::autograd::Identity>();  // Outside the graph.
    targets.emplace_back(std::move(accumulator), 0);
  }
  return torch::autograd::Engine::get_default_engine().execute({root}, {root_gradient}, keep_graph,
                                                               /*create_graph=*/false, /*accumulate_grad=*/false,
                                                               targets);
}

// Defers weight gradients to `queue` while it lives.
class Deferring {
 public:
  Deferring(nn::DeferredGradients& deferred, nn::GradientQueue& queue) : deferred_(deferred) { deferred_.open(queue); }
  ~Deferring() { deferred_.close(); }
  Deferring(const Deferring&) = delete;
  Deferring& operator=(const Deferring&) = delete;

 private:
  nn::DeferredGradients& deferred_;
};

}  // namespace

Stage::Stage(std::vector<EngineBlock> blocks, StageOptions options)
    : blocks_(std::move(blocks)), options_(std::move(options)) {
  TORCH_CHECK(!blocks_.empty(), "a stage without blocks");
  while (options_.first && first_trained_ < blocks_.size() && parameters_of(blocks_[first_trained_]).empty())
    ++first_trained_;
  if (!options_.splits_backward) return;
  for (EngineBlock& entry : blocks_) {
    for (nn::Parameter& parameter : entry.block->parameters()) parameter.deferred = &deferred_;
    for (nn::Parameter* parameter : entry.block->shared_parameters()) parameter->deferred = &deferred_;
  }
}

at::Tensor Stage::empty_input(const nn::MicrobatchContext& context) const {
  const int64_t rows = options_.edge_rows ? options_.edge_rows(context) : options_.input(context).size(0);
  return at::empty({rows, options_.edge_length(context) / options_.sequence_ranks, options_.dim}, options_.activation);
}

void Stage::unshard(size_t index) {
  for (ShardUnit* unit : blocks_[index].units) unit->unshard();
}

void Stage::begin_unshard(size_t index) {
  for (ShardUnit* unit : blocks_[index].units) unit->begin_unshard();
}

// Starts gathering the next block whose backward pass needs weights.
void Stage::begin_unshard_below(size_t index) {
  if (index > first_trained_ && blocks_[index - 1].backward_reads_weights) begin_unshard(index - 1);
}

void Stage::expect_forward() { begin_unshard(0); }

void Stage::expect_backward() {
  const EngineBlock& entry = blocks_.back();
  if (!goes_back(blocks_.size() - 1)) return;
  if (entry.backward_reads_weights || entry.checkpoint.recompute) begin_unshard(blocks_.size() - 1);
}

void Stage::reshard_after_forward(size_t index) {
  for (ShardUnit* unit : blocks_[index].units) {
    const bool no_more = !goes_back(index) && unit->users() == 1 && unit->keep() != Reshard::kAtStepEnd;
    if (unit->keep() == Reshard::kAfterForward || no_more) unit->reshard();
  }
}

// Layers must preserve shapes, and other blocks must return three dimensions: later code relies on it. Several entry
// blocks may also change the number of rows. A library's model may violate this, which is a user error and not an
// internal one.
void Stage::check_output(size_t index, const at::Tensor& input, const at::Tensor& output) const {
  const bool is_head = options_.last && index + 1 == blocks_.size();
  const bool is_entry = options_.first && index < options_.entry_blocks;
  const bool same = is_head || is_entry || (output.defined() && output.sizes() == input.sizes());
  const bool any_rows = is_entry && options_.entry_blocks > 1;
  if (same && output.defined() && output.dim() == 3 && (any_rows || output.size(0) == input.size(0))) return;
  throw Failure(rank_protocol::kExitUserError, "MODEL",
                absl::StrCat("block ", blocks_[index].block->name(), " returns ",
                             output.defined() ? c10::str(output.sizes()) : "nothing", " for ", c10::str(input.sizes()),
                             is_head ? "; expected [rows, tokens, vocabulary]" : "; expected [rows, tokens, dim]"));
}

// The loss belongs to the last block's graph, so that the logits are freed with it.
at::Tensor Stage::run(size_t index, const at::Tensor& input, const nn::MicrobatchContext& context) {
  nn::Block& block = *blocks_[index].block;
  const device::TraceScope trace([&] { return block.name(); });
  const bool ends = options_.last && index + 1 == blocks_.size();
  if (auto* head = ends ? dynamic_cast<nn::HasLoss*>(&block) : nullptr) {
    return head->loss(input, context, options_.loss);
  }
  at::Tensor output = block.forward(input, context);
  check_output(index, input, output);
  return ends ? options_.loss(output, context) : output;
}

// Runs without an autograd graph.
at::Tensor Stage::first_pass(size_t index, Saved& saved, const nn::MicrobatchContext& context) {
  at::NoGradGuard no_grad;
  const auto& policy = blocks_[index].checkpoint.keep;
  if (!policy) return run(index, saved.input, context);
  const nn::SavedActivations::Scope recording(saved.kept, policy->begin());
  at::Tensor output = run(index, saved.input, context);
  policy->end(saved.kept.calls());
  return output;
}

// Runs with an autograd graph and reuses what the first pass saved. Statistics were already counted.
torch::autograd::Edge Stage::second_pass(size_t index, Saved& saved, nn::MicrobatchContext context) {
  at::AutoGradMode with_grad(true);
  context.counting = false;
  std::optional<nn::SavedActivations::Scope> repeating;
  if (blocks_[index].checkpoint.keep) repeating.emplace(saved.kept);
  return torch::autograd::impl::gradient_edge(run(index, saved.input, context));
}

at::Tensor Stage::forward_pass(size_t index, const at::Tensor& input, Saved& saved,
                               const nn::MicrobatchContext& context) {
  if (!goes_back(index)) {
    at::NoGradGuard no_grad;
    return run(index, input, context);
  }
  saved.input = input.detach();
  if (at::isFloatingType(input.scalar_type()) && wants_input_gradient(index)) saved.input.set_requires_grad(true);
  if (blocks_[index].checkpoint.recompute) return first_pass(index, saved, context);
  const at::Tensor output = run(index, saved.input, context);
  saved.output = torch::autograd::impl::gradient_edge(output);
  return output.detach();
}

at::Tensor Stage::forward(size_t index, const at::Tensor& input, Microbatch& microbatch) {
  Saved& saved = microbatch.blocks[index];
  const auto pass = [&](const at::Tensor& activation) {
    return forward_pass(index, activation, saved, microbatch.context);
  };
  if (!as_graph(index)) return pass(input);
  const EngineBlock& entry = blocks_[index];
  const bool leaves_nothing = entry.checkpoint.recompute && entry.checkpoint.keep == nullptr;
  return options_.graphs->forward({index, microbatch.slot}, entry.block->name(), input, leaves_nothing, pass);
}

template <typename Pass>
at::Tensor Stage::through_blocks(at::Tensor activation, const Pass& pass) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    unshard(i);
    if (i + 1 < blocks_.size()) begin_unshard(i + 1);
    activation = pass(i, activation);
    reshard_after_forward(i);
  }
  return activation;
}

at::Tensor Stage::forward(int microbatch, const nn::MicrobatchContext& context, at::Tensor input) {
  at::AutoGradMode with_grad(true);
  const int slot = free_slot();
  Microbatch& state = microbatches_[microbatch];
  TORCH_CHECK(state.blocks.empty(), "microbatch ", microbatch, " is in this stage already");
  state = {context, std::vector<Saved>(blocks_.size()), slot};
  return to_keep(
      through_blocks(options_.first ? options_.input(context) : input,
                     [&](size_t index, const at::Tensor& activation) { return forward(index, activation, state); }));
}

at::Tensor Stage::evaluate(const nn::MicrobatchContext& context, at::Tensor input) {
  at::NoGradGuard no_grad;
  nn::MicrobatchContext uncounted = context;
  uncounted.counting = false;
  return through_blocks(options_.first ? options_.input(context) : input,
                        [&](size_t index, const at::Tensor& activation) { return run(index, activation, uncounted); });
}

at::Tensor Stage::visit(at::Tensor activation, const Visit& pass) {
  at::NoGradGuard no_grad;
  return through_blocks(std::move(activation),
                        [&](size_t index, const at::Tensor& before) { return pass(*blocks_[index].block, before); });
}

// Runs the graph of one block and frees its activations, unless it will run `again`.
BlockGradients Stage::gradient_pass(size_t index, Saved& saved, const nn::MicrobatchContext& context,
                                    const at::Tensor& gradient, bool split, bool again) {
  if (blocks_[index].checkpoint.recompute) saved.output = second_pass(index, saved, context);
  std::vector<at::Tensor> leaves;
  const bool input_too = saved.input.requires_grad();
  if (input_too) leaves.push_back(saved.input);
  for (const nn::Parameter* parameter : parameters_of(blocks_[index])) leaves.push_back(parameter->weight);
  saved.input.reset();
  const device::TraceScope trace([&] { return blocks_[index].block->name() + " backward"; });
  const torch::autograd::Edge root = std::exchange(saved.output, {});
  std::optional<Deferring> deferring;
  if (split) deferring.emplace(deferred_, saved.deferred);
  BlockGradients result;
  result.weights = gradients_of(root, gradient, leaves, again);
  if (!input_too) return result;
  result.input = std::move(result.weights.front());
  result.weights.erase(result.weights.begin());
  return result;
}

// Leaves the weights' gradients in the microbatch.
at::Tensor Stage::backward(size_t index, Microbatch& microbatch, const at::Tensor& gradient, bool split) {
  Saved& saved = microbatch.blocks[index];
  const auto pass = [&](const at::Tensor& of_output, bool again) {
    if (!again) return gradient_pass(index, saved, microbatch.context, of_output, split, again);
    Saved copy = saved;
    return gradient_pass(index, copy, microbatch.context, of_output, split, again);
  };
  BlockGradients result = as_graph(index) ? options_.graphs->backward({index, microbatch.slot},
                                                                      blocks_[index].block->name(), gradient, pass)
                                          : pass(gradient, /*again=*/false);
  if (as_graph(index)) saved = {};
  saved.gradients = std::move(result.weights);
  return std::move(result.input);
}

// A tensor that the next pass overwrites must not leave the stage, because messages are sent while that pass runs.
at::Tensor Stage::to_keep(const at::Tensor& result) const {
  return options_.graphs != nullptr && options_.graphs->overwrites(result) ? result.clone() : result;
}

int Stage::free_slot() const {
  for (int slot = 0;; ++slot) {
    const bool taken = std::any_of(microbatches_.begin(), microbatches_.end(), [&](const auto& one) {
      return !one.second.blocks.empty() && one.second.slot == slot;
    });
    if (!taken) return slot;
  }
}

Stage::Microbatch& Stage::find(int microbatch) {
  const auto found = microbatches_.find(microbatch);
  TORCH_CHECK(found != microbatches_.end(), "microbatch ", microbatch, " is not in this stage");
  return found->second;
}

at::Tensor Stage::backward_pass(Microbatch& microbatch, at::Tensor gradient, bool split, bool last) {
  for (size_t i = blocks_.size(); i-- > first_trained_;) {
    const EngineBlock& entry = blocks_[i];
    Saved& saved = microbatch.blocks[i];
    if (entry.backward_reads_weights || entry.checkpoint.recompute) unshard(i);
    begin_unshard_below(i);
    gradient = backward(i, microbatch, gradient, split);
    // A reduction takes the whole microbatch's gradients; a sum takes them as they are computed.
    if (!split || (options_.reduce_once && saved.deferred.empty()))
      deliver(i, std::exchange(saved.gradients, {}), last);
    for (ShardUnit* unit : entry.units) {
      if (unit->keep() != Reshard::kAtStepEnd) unit->reshard();
    }
  }
  finish_reduction();
  if (options_.first) return {};  // The first stage has no predecessor.
  return to_keep(gradient);
}

at::Tensor Stage::backward(int microbatch, at::Tensor output_gradient, bool last) {
  at::Tensor gradient = backward_pass(find(microbatch), std::move(output_gradient), /*split=*/false, last);
  microbatches_.erase(microbatch);
  return gradient;
}

at::Tensor Stage::input_gradient(int microbatch, at::Tensor output_gradient) {
  TORCH_CHECK(options_.splits_backward, "this stage was not built for a schedule that splits the backward pass");
  return backward_pass(find(microbatch), std::move(output_gradient), /*split=*/true, /*last=*/false);
}

void Stage::weight_gradient(int microbatch, bool last) {
  at::NoGradGuard no_grad;
  Microbatch& state = find(microbatch);
  for (size_t i = blocks_.size(); i-- > 0;) {
    Saved& saved = state.blocks[i];
    if (saved.gradients.empty()) continue;
    const std::vector<const nn::Parameter*> parameters = parameters_of(blocks_[i]);
    for (nn::DeferredGradient& one : saved.deferred) {
      const auto place = std::find(parameters.begin(), parameters.end(), one.parameter);
      TORCH_CHECK(place != parameters.end(), one.parameter->fqn, " is not a parameter of ", blocks_[i].block->name());
      at::Tensor& sum = saved.gradients[static_cast<size_t>(place - parameters.begin())];
      at::Tensor gradient = one.compute();
      one.compute = nullptr;  // Frees what it held.
      sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
    }
    deliver(i, std::move(saved.gradients), last);
  }
  finish_reduction();
  microbatches_.erase(microbatch);
}

void Stage::deliver(size_t index, std::vector<at::Tensor> gradients, bool last) {
  const EngineBlock& entry = blocks_[index];
  // At most one reduction is in flight. The previous block's reduction completed while this block computed.
  if (!options_.reduce_once) finish_reduction();
  auto next = gradients.begin();
  for (ShardUnit* unit : entry.units) {
    if (unit->frozen()) continue;
    const auto count = static_cast<int64_t>(unit->parameters().size());
    std::vector<at::Tensor> own(std::make_move_iterator(next), std::make_move_iterator(next + count));
    next += count;
    if (options_.reduce_once) {
      unit->add_gradients(std::move(own));
    } else {
      unit->begin_reduce(std::move(own), last);
    }
  }
  unreduced_ = options_.reduce_once;
  reducing_ = options_.reduce_once ? nullptr : &entry;
}

void Stage::finish_reduction() {
  if (reducing_ == nullptr) return;
  const EngineBlock& entry = *std::exchange(reducing_, nullptr);
  for (ShardUnit* unit : entry.units) unit->finish_reduce();
  if (!options_.completed) return;
  for (ShardUnit* unit : entry.units) {
    unit->finish_gradients();
    if (unit->complete()) options_.completed(*unit);
  }
}

void Stage::reduce() {
  if (!unreduced_) return;
  unreduced_ = false;
  for (size_t i = blocks_.size(); i-- > 0;) {
    finish_reduction();
    for (ShardUnit* unit : blocks_[i].units) {
      if (unit->frozen()) continue;
      unit->begin_reduce(std::vector<at::Tensor>(unit->parameters().size()), /*last=*/true);
    }
    reducing_ = &blocks_[i];
  }
  finish_reduction();
}

}  // namespace titan::runtime
