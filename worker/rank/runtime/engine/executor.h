#pragma once

// An Executor runs this rank's list of a schedule over its stages; StageRunner is the interface that a stage implements
// for it.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/plan/pipeline/schedule.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/runtime/engine/pairs.h"

namespace titan::runtime {

// What an Executor asks of one stage of the model. A stage keeps what it needs of each microbatch from its forward pass
// until its gradients are taken.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  // A tensor for what the stage before sends for this microbatch, and what this one sends back. Values are undefined.
  virtual at::Tensor empty_input(const nn::MicrobatchContext& context) const = 0;

  // Starts what the next call of forward(), or of a backward pass, would otherwise wait for.
  virtual void expect_forward() {}
  virtual void expect_backward() {}

  // `input`: the output of the stage before; the first stage reads context.tokens instead. Returns this stage's output,
  // without a graph; from the last stage the sum of its cross-entropies, a scalar.
  virtual at::Tensor forward(int microbatch, const nn::MicrobatchContext& context, at::Tensor input) = 0;
  // The same without a backward pass to come.
  virtual at::Tensor evaluate(const nn::MicrobatchContext& context, at::Tensor input) = 0;

  // From the gradient of the output to that of the input (undefined for the first stage), and the weights' gradients.
  // `last`: no other microbatch brings this stage weight gradients in this optimizer step.
  virtual at::Tensor backward(int microbatch, at::Tensor output_gradient, bool last) = 0;
  // The same in two parts: only what the stage before waits for, then the rest.
  virtual at::Tensor input_gradient(int microbatch, at::Tensor output_gradient) = 0;
  virtual void weight_gradient(int microbatch, bool last) = 0;

  // The weight gradients of the step are complete: sums them over the data-parallel ranks, if that was not done after
  // each microbatch.
  virtual void reduce() = 0;
};

// Runs this rank's list of a schedule over its stages. Outputs go to the rank of the next stage as soon as they exist,
// input gradients to that of the stage before; between stages of one rank they are handed over.
//
// No schedule that the simulator accepts can block here: sends never wait for the receiver, and receives from one rank
// are posted in the order in which that rank sends (so that a library whose messages are ordered, not tagged, pairs
// them rightly), as early as the next pieces of work need them.
class Executor {
 public:
  // `stages`: this rank's, by their index in the whole model. `pipeline`: mesh::Axis::kPipeline; null: the only rank.
  // All must outlive the executor. `begins` is told of every action before it runs; may be empty.
  Executor(std::map<int, StageRunner*> stages, const comm::Group* pipeline,
           std::function<void(const pipeline::Action&)> begins = {});

  // From now on the halves of a schedule's pairs run side by side where their inputs allow it; else one after the
  // other. Weights must stay gathered for the whole step: one half must not free what the other reads.
  void overlap_pairs();

  // One pass over `schedule`, whose microbatch m is microbatches[m]. Gradients are those of the sum of cross-entropies
  // divided by global_tokens(), an int64 scalar on the device, which is asked for once, before the first backward pass.
  // `last`: no other run brings gradients in this optimizer step. Returns the undivided sum of this rank's
  // cross-entropies (float64, detached; 0 where the last stage lives elsewhere). A schedule of forward passes alone
  // evaluates. Throws PeerLost.
  at::Tensor run(const pipeline::Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
                 const std::function<at::Tensor()>& global_tokens = {}, bool last = true);

 private:
  class Run;

  const std::map<int, StageRunner*> stages_;
  const comm::Group* const pipeline_;
  const std::function<void(const pipeline::Action&)> begins_;
  std::unique_ptr<PairRunner> pairs_;
};

}  // namespace titan::runtime
