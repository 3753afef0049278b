// Tests the parameters that every flavor declares, and their initial values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/plan/models/sizes.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/nn/init.h"

namespace titan::testing {
namespace {

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Blocks, names, shapes and their order are those of the controller's plans and of checkpoints.
TEST(ParametersTest, MatchTheTableForEveryFlavor) {
  int flavors = 0;
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      SCOPED_TRACE(name + " " + flavor);
      const models::ModelSpec spec = *models::find(name, flavor);
      const absl::StatusOr<model::Model> model = model::build(spec, {.seq_len = 16});
      ASSERT_TRUE(model.ok()) << model.status();
      const std::vector<models::BlockSize> blocks = models::block_sizes(spec);
      ASSERT_EQ(model->blocks.size(), blocks.size());
      const std::vector<models::ParameterSpec> want = models::parameters(spec);
      size_t next = 0;
      for (size_t i = 0; i < blocks.size(); ++i) {
        EXPECT_EQ(model->blocks[i]->name(), blocks[i].name);
        for (const nn::Parameter& p : model->blocks[i]->parameters()) {
          ASSERT_LT(next, want.size()) << p.fqn;
          EXPECT_EQ(p.fqn, want[next].fqn);
          EXPECT_EQ(p.shape, want[next].shape) << p.fqn;
          EXPECT_EQ(p.expert, want[next].role == models::ParameterRole::kExpert) << p.fqn;
          ++next;
        }
      }
      EXPECT_EQ(next, want.size());
      ++flavors;
    }
  }
  EXPECT_GE(flavors, 38);
}

// Every layer with experts has a bias that starts at zero and is saved with the layer.
TEST(ParametersTest, ExpertBiasesAreBuffers) {
  const models::ModelSpec spec = small_spec("llama4", "debugmodel");
  const model::Model model = *model::build(spec, {.seq_len = 16});
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    nn::Block& block = *model.blocks[static_cast<size_t>(layer) + 1];
    ASSERT_EQ(block.buffers().size(), spec.layer_has_experts(layer) ? 1u : 0u);
    if (block.buffers().empty()) continue;
    block.init_buffers(at::kCPU, at::kBFloat16);
    nn::Buffer& bias = block.buffers().front();
    EXPECT_EQ(bias.fqn, "layers." + std::to_string(layer) + ".moe.expert_bias");
    EXPECT_TRUE(bias.value.equal(at::zeros({8})));
    bias.value.fill_(3);
    block.init_buffers(at::kCPU, at::kBFloat16);
    EXPECT_EQ(bias.value[0].item<float>(), 3) << "training's value was reset";
  }
}

TEST(ParametersTest, ATiedHeadReadsTheEmbedding) {
  const model::Model model = *model::build(small_spec("qwen3", "debugmodel"), {.seq_len = 16});
  const auto shared = model.blocks.back()->shared_parameters();
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0], &model.blocks.front()->parameters().front());
  EXPECT_EQ(model.blocks.back()->parameters().size(), 1u);
  const model::Model untied = *model::build(small_spec("qwen3", "8B"), {.seq_len = 16});
  EXPECT_TRUE(untied.blocks.back()->shared_parameters().empty());
}

struct Drawn {
  double std, bound;  // Standard deviation before truncation; 0: all ones.
};

// Returns what torchtitan 0.2.2's init_weights draws, family by family.
Drawn expected(const models::ModelSpec& spec, const std::string& fqn) {
  if (has(fqn, "norm")) return {0, 0};
  const double head = 1 / std::sqrt(static_cast<double>(spec.dim));
  if (fqn == "output.weight" || (fqn == "tok_embeddings.weight" && spec.tied_embeddings)) return {head, 3 * head};
  if (fqn == "tok_embeddings.weight") return {1, std::numeric_limits<double>::infinity()};
  const double layer = std::stod(fqn.substr(std::string("layers.").size()));
  const double deep = 0.02 / std::sqrt(2 * (layer + 1));
  if (spec.name == "gpt_oss") return {deep, 2};
  for (const char* part : {".wo.", ".w2", ".w3", ".router.gate."}) {
    if (has(fqn, part)) return {deep, 2};
  }
  return {0.02, 2};
}

// Returns the standard deviation of a standard normal that is truncated at +-c.
double cut_deviation(double c) {
  if (!(c < 30)) return 1;
  const double density = std::exp(-c * c / 2) / std::sqrt(2 * M_PI), inside = std::erf(c / std::sqrt(2));
  return std::sqrt(1 - 2 * c * density / inside);
}

models::ModelSpec thin(const std::string& name, const std::string& flavor) {
  models::ModelSpec spec = *models::find(name, flavor);
  spec.n_layers = spec.nope_layer_step > 0 ? 5 : 3;
  spec.vocab_size = std::min<int64_t>(spec.vocab_size, 2048);
  if (spec.moe) {
    spec.moe->num_experts = 8;
    spec.moe->hidden = std::min<int64_t>(spec.moe->hidden, 256);
  }
  return spec;
}

class InitTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// Mean, deviation and bounds are within 4.5 standard errors, and the bits do not depend on how a mesh splits the
// parameter.
TEST_P(InitTest, DrawsTheStatedDistributions) {
  const models::ModelSpec spec = thin(GetParam().first, GetParam().second);
  const model::Model model = *model::build(spec, {.seq_len = 16});
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& p : block->parameters()) {
      const at::Tensor value = at::empty(p.shape);
      nn::fill(p, 7, 0, value.numel(), value);
      const Drawn want = expected(spec, p.fqn);
      if (want.std == 0) {
        EXPECT_TRUE(value.equal(at::ones_like(value))) << p.fqn;
        continue;
      }
      const double n = static_cast<double>(value.numel()), std = want.std * cut_deviation(want.bound / want.std);
      const at::Tensor wide = value.to(at::kDouble);
      EXPECT_NEAR(wide.mean().item<double>() / std, 0, 4.5 / std::sqrt(n)) << p.fqn;
      EXPECT_NEAR(wide.square().mean().sqrt().item<double>() / std, 1, 4.5 / std::sqrt(2 * n)) << p.fqn;
      EXPECT_LE(wide.abs().max().item<double>(), want.bound) << p.fqn;
      if (n > 1e5 && want.bound < 5 * want.std) {
        EXPECT_GT(wide.abs().max().item<double>(), 0.98 * want.bound) << p.fqn;
      }

      const int64_t begin = value.numel() / 3, end = begin + value.numel() / 2;
      const at::Tensor slice = at::empty({end - begin});
      nn::fill(p, 7, begin, end, slice);
      EXPECT_TRUE(slice.equal(value.flatten().slice(0, begin, end))) << p.fqn;
      std::vector<int64_t> offset, size;
      at::Tensor box = value;
      for (int64_t dim = 0; dim < value.dim(); ++dim) {
        offset.push_back(value.size(dim) / 4);
        size.push_back(std::max<int64_t>(1, value.size(dim) / 2));
        box = box.narrow(dim, offset.back(), size.back());
      }
      const at::Tensor filled = at::empty(size);
      nn::fill_box(p, 7, offset, filled);
      EXPECT_TRUE(filled.equal(box)) << p.fqn;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, InitTest,
                         ::testing::Values(std::pair{"llama3", "debugmodel"}, std::pair{"llama4", "debugmodel"},
                                           std::pair{"llama4", "debugmodel_irope"},
                                           std::pair{"deepseek_v3", "debugmodel"}, std::pair{"qwen3", "debugmodel"},
                                           std::pair{"qwen3", "debugmodel_moe"}, std::pair{"gpt_oss", "debugmodel"}),
                         [](const auto& info) { return std::string(info.param.first) + "_" + info.param.second; });

// The error names the numbers that do not fit together.
TEST(SpecTest, RefusesInconsistentNumbers) {
  const auto message = [](auto change) {
    models::ModelSpec spec = small_spec("deepseek_v3", "671B");
    change(spec);
    const auto built = model::build(spec, {});
    EXPECT_EQ(built.status().code(), absl::StatusCode::kInvalidArgument) << built.status();
    return std::string(built.status().message());
  };
  EXPECT_TRUE(
      has(message([](auto& s) { s.n_kv_heads = 3; }), "n_heads (4) must be a positive multiple of n_kv_heads (3)"));
  EXPECT_TRUE(has(message([](auto& s) { s.qk_rope_head_dim = 3; }), "qk_rope_head_dim (3)"));
  EXPECT_TRUE(has(message([](auto& s) { s.moe->top_k = 9; }), "top_k (9) must be from 1 to num_experts (8)"));
  EXPECT_TRUE(
      has(message([](auto& s) { s.moe->num_limited_groups = 1; }), "num_limited_groups (1) of num_expert_groups (4)"));
  EXPECT_TRUE(has(message([](auto& s) { s.moe->score_func = "relu"; }), "\"relu\""));
  EXPECT_TRUE(has(message([](auto& s) { s.moe.reset(), s.swiglu_limit = 7; }), "swiglu_limit (7)"));
  models::ModelSpec spec = small_spec("llama3", "8B");
  spec.name = "nothing";
  EXPECT_EQ(model::build(spec, {}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace titan::testing
