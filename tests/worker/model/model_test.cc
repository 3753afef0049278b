#include "worker/model/model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>

#include "common/models/registry.h"
#include "common/models/sizes.h"
#include "worker/model/hf_names.h"
#include "worker/nn/init.h"
#include "worker/nn/loss.h"

namespace titan::model {
namespace {

models::ModelSpec tiny_spec() {
  models::ModelSpec spec = *models::find("llama3", "debugmodel");
  spec.dim = 64;
  spec.n_layers = 2;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 16;
  spec.ffn_hidden = 96;
  spec.vocab_size = 50;
  return spec;
}

// Blocks, names, shapes and order are those that the controller plans with and checkpoints are written with.
TEST(LlamaTest, DeclaresTheTablesParametersInOrder) {
  for (const char* flavor : {"debugmodel", "bench", "8B", "405B"}) {
    const models::ModelSpec spec = *models::find("llama3", flavor);
    const absl::StatusOr<Model> model = build(spec, {.seq_len = 128});
    ASSERT_TRUE(model.ok()) << model.status();
    const std::vector<models::Tensor> want = models::parameters(spec);
    const std::vector<models::BlockSize> blocks = models::block_sizes(spec);
    ASSERT_EQ(model->blocks.size(), blocks.size());
    std::map<std::string, std::vector<int64_t>> got;
    int64_t total = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(model->blocks[i]->name(), blocks[i].name);
      int64_t size = 0;
      for (const nn::Parameter& p : model->blocks[i]->parameters()) {
        got[p.fqn] = p.shape;
        size += c10::multiply_integers(p.shape);
      }
      EXPECT_EQ(size, blocks[i].params) << blocks[i].name;
      total += size;
    }
    EXPECT_EQ(got.size(), want.size());
    for (const models::Tensor& tensor : want) EXPECT_EQ(got[tensor.fqn], tensor.shape) << tensor.fqn;
    EXPECT_EQ(total, models::parameter_count(spec));
  }
}

// §"Common init" of torchtitan: deviation and bounds of every parameter of the debug model.
TEST(LlamaTest, InitialValuesFollowTheirDistributions) {
  const models::ModelSpec spec = *models::find("llama3", "debugmodel");
  const Model model = *build(spec, {.seq_len = 128});
  for (size_t block = 0; block < model.blocks.size(); ++block) {
    for (const nn::Parameter& p : model.blocks[block]->parameters()) {
      at::Tensor value = at::empty(p.shape);
      nn::fill(p, 0, 0, value.numel(), value);
      double std = 0.02;
      if (p.fqn.find("norm") != std::string::npos) {
        EXPECT_TRUE(value.equal(at::ones_like(value))) << p.fqn;
        continue;
      }
      if (p.fqn == "tok_embeddings.weight") std = 1;
      if (p.fqn == "output.weight") std = 0.98658 / 16;  // Of a normal cut at 3 deviations.
      for (const char* deep : {".wo.", ".w2.", ".w3."}) {
        if (p.fqn.find(deep) != std::string::npos) std = 0.02 / std::sqrt(2.0 * static_cast<double>(block));
      }
      const double n = static_cast<double>(value.numel());
      EXPECT_NEAR(value.std().item<double>() / std, 1, 4 / std::sqrt(2 * n)) << p.fqn;
      EXPECT_NEAR(value.mean().item<double>() / std, 0, 4.5 / std::sqrt(n)) << p.fqn;
      if (p.fqn != "output.weight") continue;
      EXPECT_LE(value.abs().max().item<double>(), 3.0 / 16);
    }
  }
}

// Logits and gradients depend on every parameter, and only earlier tokens reach a position.
TEST(LlamaTest, IsCausalAndUsesEveryParameter) {
  const Model model = *build(tiny_spec(), {.seq_len = 16});
  std::vector<at::Tensor> weights;
  for (const auto& block : model.blocks) {
    block->init_buffers(at::kCPU, at::kDouble);
    for (nn::Parameter& p : block->parameters()) {
      p.weight = at::empty(p.shape, at::kDouble);
      nn::fill(p, 5, 0, p.weight.numel(), p.weight);
      p.weight.requires_grad_();
      weights.push_back(p.weight);
    }
  }
  const auto logits_of = [&](const at::Tensor& tokens) {
    at::Tensor x = tokens;
    for (const auto& block : model.blocks) x = block->forward(x, {});
    return x;
  };
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  at::Tensor changed = tokens.clone();
  changed.slice(1, 9).add_(1).remainder_(50);
  const at::Tensor a = logits_of(tokens), b = logits_of(changed);
  EXPECT_EQ(a.sizes(), (at::IntArrayRef{2, 16, 50}));
  EXPECT_TRUE(at::allclose(a.slice(1, 0, 9), b.slice(1, 0, 9), 1e-12, 1e-12));
  EXPECT_GT((a - b).slice(1, 9).abs().max().item<double>(), 1e-3);
  const auto grads = torch::autograd::grad({nn::cross_entropy_sum(a, tokens)}, weights);
  for (const at::Tensor& grad : grads) EXPECT_GT(grad.abs().max().item<double>(), 0);
}

TEST(LlamaTest, RefusesWhatItCannotCompute) {
  EXPECT_EQ(build(*models::find("llama3", "8B_flex"), {}).status().code(), absl::StatusCode::kUnimplemented);
  models::ModelSpec spec = tiny_spec();
  spec.name = "nothing";
  EXPECT_EQ(build(spec, {}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(hf_tensor(spec, "norm.weight").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(HfNamesTest, EveryParameterHasOneKeyAndComesBack) {
  const models::ModelSpec spec = *models::find("llama3", "8B");
  std::map<std::string, std::string> keys;
  for (const models::Tensor& tensor : models::parameters(spec)) {
    const absl::StatusOr<HfTensor> place = hf_tensor(spec, tensor.fqn);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_TRUE(keys.emplace(place->key, tensor.fqn).second) << place->key;
    const auto back = fqn_of_hf_key(spec, place->key);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, tensor.fqn);
  }
  EXPECT_EQ(keys["model.layers.31.mlp.up_proj.weight"], "layers.31.feed_forward.w3.weight");
  EXPECT_EQ(hf_tensor(spec, "layers.0.attention.wq.weight")->permute_heads, 32);
  EXPECT_EQ(hf_tensor(spec, "layers.0.attention.wk.weight")->permute_heads, 8);
  EXPECT_EQ(hf_tensor(spec, "layers.0.attention.wv.weight")->permute_heads, 0);
}

TEST(HfNamesTest, UnknownNamesAreErrorsAndRotaryTablesAreNot) {
  const models::ModelSpec spec = *models::find("llama3", "debugmodel");
  EXPECT_EQ(*fqn_of_hf_key(spec, "model.layers.5.self_attn.rotary_emb.inv_freq"), std::nullopt);
  for (const char* key : {"model.layers.6.mlp.up_proj.weight", "model.layers.x.mlp.up_proj.weight", "lm_head.bias",
                          "layers.0.mlp.up_proj.weight", "model.layers.0", "model.layers.0."}) {
    EXPECT_EQ(fqn_of_hf_key(spec, key).status().code(), absl::StatusCode::kNotFound) << key;
  }
  EXPECT_EQ(hf_tensor(spec, "layers.6.attention.wq.weight").status().code(), absl::StatusCode::kNotFound);
}

// Row 2i + j of a head moves to row j * D/2 + i.
TEST(HfNamesTest, PermutationMovesPairsToHalves) {
  const HfTensor place{"q", 2};
  const at::Tensor value = at::arange(2 * 6 * 3, at::kFloat).view({12, 3});
  const at::Tensor hf = to_hf(place, value);
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 2; ++j) EXPECT_TRUE(hf[head * 6 + j * 3 + i].equal(value[head * 6 + 2 * i + j]));
    }
  }
  EXPECT_TRUE(from_hf(place, hf).equal(value));
  EXPECT_TRUE(to_hf(HfTensor{"v"}, value).is_same(value));
}

}  // namespace
}  // namespace titan::model
