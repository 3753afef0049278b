#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "common/plan/models/registry.h"
#include "tests/testing/flop_counter.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/saved_activations.h"
#include "worker/rank/parallel/context.h"

namespace titan::testing {

inline constexpr int64_t kRows = 2, kTokens = 16;

// One transformer block of a model, with weights and inputs.
struct CheckpointedBlock {
  CheckpointedBlock(const std::string& family, const std::string& flavor, at::ScalarType type, int layer = 1,
                    const comm::DeviceMesh* mesh = nullptr, model::ParallelOptions options = {},
                    const std::function<void(models::ModelSpec&)>& change = {}) {
    spec = models::find(family, flavor).value();
    spec.vocab_size = 64;
    if (change) change(spec);
    if (spec.moe) spec.moe->num_experts = 8, spec.moe->hidden = 48;  // Products of experts would take most of the time.
    const int64_t row = mesh == nullptr ? kTokens : kTokens * mesh->group(mesh::Axis::kContext).size();
    model = model::build(spec, {.seq_len = kTokens, .longest_row = row}).value();
    if (mesh != nullptr) {
      options.mesh = mesh;
      EXPECT_TRUE(model.parallelize(model, options).ok());
    }
    block = model.blocks[layer + 1].get();
    at::manual_seed(3);
    for (nn::Parameter& parameter : block->parameters()) {
      parameter.weight = (at::randn(parameter.shape, at::kDouble) / 16).to(type).set_requires_grad(true);
    }
    block->init_buffers(at::kCPU, type);
    context.tokens = at::zeros({kRows, row}, at::kLong);
    if (mesh != nullptr) context = parallel::shard_microbatch(context, {.group = &mesh->group(mesh::Axis::kContext)});
    const int64_t tokens = mesh == nullptr ? kTokens : kTokens / mesh->group(mesh::Axis::kTensor).size();
    input = at::randn({kRows, tokens, spec.dim}, at::kDouble).to(type);
    gradient = at::randn({kRows, tokens, spec.dim}, at::kDouble).to(type);
  }

  std::vector<at::Tensor> gradients(const at::Tensor& output, const at::Tensor& leaf) {
    std::vector<at::Tensor> leaves = {leaf};
    for (nn::Parameter& parameter : block->parameters()) leaves.push_back(parameter.weight);
    std::vector<at::Tensor> all = torch::autograd::grad({output}, leaves, {gradient}, /*retain_graph=*/false,
                                                        /*create_graph=*/false, /*allow_unused=*/true);
    all.push_back(output.detach());
    return all;
  }
  std::vector<at::Tensor> plain() {
    const at::Tensor leaf = input.detach().set_requires_grad(true);
    return gradients(block->forward(leaf, context), leaf);
  }
  void first_pass(nn::RecomputePolicy& policy) {
    const at::NoGradGuard no_grad;
    const nn::SavedActivations::Scope scope(saved, policy.begin());
    first_output = block->forward(input, context);
    policy.end(saved.calls());
  }
  std::vector<at::Tensor> second_pass() {
    const at::Tensor leaf = input.detach().set_requires_grad(true);
    at::Tensor output;
    {
      const nn::SavedActivations::Scope scope(saved);
      const testing::FlopCounter flops;
      output = block->forward(leaf, context);
      again = flops.total();
      products_again = flops.products();
    }
    return gradients(output, leaf);
  }

  models::ModelSpec spec;
  model::Model model;
  nn::Block* block = nullptr;
  nn::MicrobatchContext context;
  at::Tensor input, gradient, first_output;  // [kRows, tokens of this rank, dim]
  nn::SavedActivations saved;
  int64_t again = 0, products_again = 0;  // FLOPs of the second pass: all, and without attention.
};

inline void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << i;
    }
  }
}

}  // namespace titan::testing
