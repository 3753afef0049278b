#pragma once

// An Executor runs this rank's list of a schedule over its stages, each of which implements StageRunner.

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

// A stage of the model as the Executor uses it. It saves what it needs of each microbatch from the forward pass until
// the microbatch's gradients are computed.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  // Returns an uninitialized tensor [B, T, dim] with the shape of this stage's input for this microbatch, which is also
  // that of the gradient that it sends back.
  virtual at::Tensor empty_input(const nn::MicrobatchContext& context) const = 0;

  // Start work, such as gathers, that the next forward() or backward pass would otherwise wait for.
  virtual void expect_forward() {}
  virtual void expect_backward() {}

  // `input`: the previous stage's output [B, T, dim]; the first stage takes its input from the context. Returns this
  // stage's output [B, T, dim] without a graph, or from the last stage the sum of its loss terms, a scalar.
  virtual at::Tensor forward(int microbatch, const nn::MicrobatchContext& context, at::Tensor input) = 0;
  // Same, without a following backward pass.
  virtual at::Tensor evaluate(const nn::MicrobatchContext& context, at::Tensor input) = 0;

  // Computes the weights' gradients and returns the input's from the output's, both [B, T, dim]; undefined from the
  // first stage. The last stage gets the gradient of its scalar. `last`: no other microbatch adds weight gradients to
  // this stage in this optimizer step.
  virtual at::Tensor backward(int microbatch, at::Tensor output_gradient, bool last) = 0;
  // Same in two parts: first only the gradient that the previous stage waits for, then the rest.
  virtual at::Tensor input_gradient(int microbatch, at::Tensor output_gradient) = 0;
  virtual void weight_gradient(int microbatch, bool last) = 0;

  // Call it when the step's weight gradients are complete: sums them over the data-parallel ranks, unless that was done
  // after each microbatch.
  virtual void reduce() = 0;
};

// Runs this rank's list of a schedule over its stages. Outputs are sent to the rank of the next stage as soon as they
// exist, and input gradients to that of the previous stage. Stages on one rank pass tensors directly.
//
// A schedule that the simulator accepts cannot deadlock: sends never wait for the receiver, and receives are posted as
// early as the next actions need them. Receives from one rank are posted in the order in which that rank sends, so a
// library that orders messages instead of tagging them pairs them correctly.
class Executor {
 public:
  // `stages`: this rank's stages by index in the whole model. `pipeline`: mesh::Axis::kPipeline; null: a single rank.
  // All must outlive the executor. `begins`, which may be empty, is called with every action before it runs.
  Executor(std::map<int, StageRunner*> stages, const comm::Group* pipeline,
           std::function<void(const pipeline::Action&)> begins = {});

  // Makes the two halves of a schedule's pairs run concurrently if their inputs allow it, otherwise one after the
  // other. Weights must stay gathered for the whole step, because one half must not free what the other reads.
  void overlap_pairs();

  // Runs `schedule` once, where microbatch m is microbatches[m]. Computes gradients of the sum of loss terms divided by
  // global_terms(), an int64 scalar on the device, called once, before the first backward pass. `last`: no other run
  // adds gradients in this optimizer step. Returns the undivided sum of this rank's loss terms (float64 scalar,
  // detached; 0 if the last stage is on another rank). A schedule with only forward passes evaluates. Throws PeerLost.
  at::Tensor run(const pipeline::Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
                 const std::function<at::Tensor()>& global_terms = {}, bool last = true);

 private:
  class Run;

  const std::map<int, StageRunner*> stages_;
  const comm::Group* const pipeline_;
  const std::function<void(const pipeline::Action&)> begins_;
  std::unique_ptr<PairRunner> pairs_;
};

}  // namespace titan::runtime
