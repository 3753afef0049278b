#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/model/model.h"

namespace titan::testing {

using Tensors = std::map<std::string, at::Tensor>;

// Distances of Titan's step from the oracle's.
struct Errors {
  double logits = 0, grad = 0, loss = 0;  // Relative rms; for the loss the relative error.
  std::string worst;                      // Parameter with the largest gradient error.
  int64_t routed_elsewhere = 0;           // Tokens, over all layers, that went to other experts than the oracle's.

  void add_grad(const std::string& fqn, const at::Tensor& got, const at::Tensor& want);
  bool pass() const;
};

// Errors of a step in bfloat16, divided by those of the oracle's own step in bfloat16. The reference for both is the
// oracle's step in fp32 from the same weights, rounded to bfloat16, with the same experts for each token.
struct Rounded {
  double logits = 0, loss = 0, grad = 0;  // Ratios; `grad` is the largest, less a margin for small tensors.
  double median = 0;                      // Median ratio over the gradients.
  std::string worst;
};

// One model with the oracle's weights, and the oracle's results with them (tests/peer/one_step.py): a folder with
// case.json, model.safetensors, step1.safetensors and bfloat16.safetensors.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& folder);

  const nlohmann::json& about() const { return about_; }
  const models::ModelSpec& spec() const { return spec_; }
  models::ModelSpec rounded_spec() const;  // The spec of the oracle's step in bfloat16.
  const Tensors& peer() const { return peer_; }
  const at::Tensor& tokens() const { return peer_.at("tokens"); }
  const at::Tensor& labels() const { return peer_.at("labels"); }

  // Builds a new model of another spec with the same weights. `permute` = false keeps heads' rows in Hugging Face's
  // order.
  void build(const models::ModelSpec& spec, bool permute = true);

  // Return all parameters' names, and their values by name.
  std::vector<std::string> names() const;
  Tensors weights() const;
  Tensors buffers() const;  // Saved buffers.

  // Runs the bare model forward and backward.
  Errors run();
  // Runs a disturbed model like run(). If the first row's logits show the disturbance, it skips the rest.
  Errors run_disturbed();
  // Runs with weights in bfloat16, and compares with the reference and the oracle's own step.
  Rounded run_rounded();
  // Casts the weights to another type, with buffers as in a job. run() is not valid afterwards.
  void cast(at::ScalarType type);
  // Returns the number of calls of LibTorch's operations in forward, loss and backward (tests/testing/call_counter.h).
  int64_t count_calls();
  // Calls `run` while one parameter carries noise of `relative` times its rms.
  void with_noise(const std::string& fqn, double relative, const std::function<void()>& run);

  // Returns the errors of a step that was computed elsewhere with the same weights: "logits" and "grad.<FQN>".
  Errors errors_of(const Tensors& step) const;
  // Returns the oracle's gradient of one parameter, in Titan's layout.
  at::Tensor peer_grad(const nn::Parameter& parameter) const;

 private:
  at::Tensor grad_of(const Tensors& step, const std::string& prefix, const nn::Parameter& parameter) const;
  std::vector<at::Tensor> choices(const Tensors& step) const;
  at::Tensor forward(const at::Tensor& tokens);
  // Returns the gradients of all weights, in their order.
  std::vector<at::Tensor> backward(const at::Tensor& loss);
  void watch_routers();
  nn::Parameter& find(const std::string& fqn);

  nlohmann::json about_;
  models::ModelSpec spec_;
  Tensors hf_, peer_, rounded_;
  model::Model model_;
  Tensors router_inputs_;  // Keyed by "routing.<layer>"; inputs of the last forward pass.
};

double rms(const at::Tensor& value);
double relative_rms(const at::Tensor& got, const at::Tensor& want);

}  // namespace titan::testing
