#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/block.h"

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

}  // namespace titan::runtime
