// Every family's forward pass and gradients against the model written out plainly in float64.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/worker/model/testing.h"
#include "worker/nn/rope.h"

namespace titan::testing {
namespace {

constexpr int64_t kBatch = 2, kLength = 24;

struct Result {
  at::Tensor logits;
  std::map<std::string, at::Tensor> gradients;
};

Result gradients_of(const at::Tensor& logits, const at::Tensor& pull, const std::vector<std::string>& names,
                    const std::vector<at::Tensor>& leaves) {
  Result result{logits.detach(), {}};
  const auto gradients = torch::autograd::grad({(logits * pull).sum()}, leaves);
  for (size_t i = 0; i < names.size(); ++i) result.gradients[names[i]] = gradients[i];
  return result;
}

Result run_reference(const SmallModel& small, const Weights& weights, const ReferenceBatch& batch,
                     const at::Tensor& pull, double* margin) {
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (const auto& [name, value] : weights) {
    if (!value.requires_grad()) continue;
    names.push_back(name);
    leaves.push_back(value);
  }
  return gradients_of(reference_logits(small.spec, weights, batch, small.seq_len, margin), pull, names, leaves);
}

Result run_model(const model::Model& model, const Weights& weights, const ReferenceBatch& batch, const at::Tensor& pull,
                 at::ScalarType type) {
  set_weights(model, weights, type);
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  nn::MicrobatchContext context{.tokens = batch.tokens};
  context.documents = batch.documents;
  at::Tensor x = batch.tokens;
  for (const auto& block : model.blocks) {
    x = block->forward(x, context);
    for (nn::Parameter& p : block->parameters()) {
      names.push_back(p.fqn);
      leaves.push_back(p.weight);
    }
  }
  EXPECT_EQ(x.scalar_type(), type);
  return gradients_of(x, pull.to(type), names, leaves);
}

class FamilyTest : public ::testing::TestWithParam<SmallModel> {};

// Logits and the gradient of every parameter, with packed documents where the flavor has them. Routing is discrete, so
// the first seed is taken that leaves a margin which float32 rounding does not cross.
TEST_P(FamilyTest, MatchesThePlainModel) {
  const SmallModel& small = GetParam();
  absl::StatusOr<model::Model> built = model::build(small.spec, {.seq_len = small.seq_len});
  ASSERT_TRUE(built.ok()) << built.status();
  Weights weights;
  ReferenceBatch batch;
  at::Tensor pull;
  Result want;
  double margin = 0;
  for (uint64_t seed = 11; margin < 2e-5; ++seed) {
    ASSERT_LT(seed, 30u);
    weights = draw_weights(*built, small.spec, seed);
    batch.tokens = at::randint(small.spec.vocab_size, {kBatch, kLength}, at::kLong);
    if (small.spec.mask == models::Mask::kBlockCausal) batch.documents = draw_documents(kBatch, kLength);
    pull = at::randn({kBatch, kLength, small.spec.vocab_size}, at::kDouble);
    want = run_reference(small, weights, batch, pull, &margin);
  }

  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double tolerance = type == at::kDouble ? 1e-10 : 1e-5;
    const Result got = run_model(*built, weights, batch, pull, type);
    EXPECT_LT(relative_error(got.logits, want.logits), tolerance) << type;
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (const auto& [name, gradient] : want.gradients) {
      EXPECT_GT(gradient.norm().item<double>(), 0) << name;
      EXPECT_LT(relative_error(got.gradients.at(name), gradient), tolerance) << name << " " << type;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, ::testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.what; });

// A context-parallel rank sees some of a row's positions only: their rows of the tables, and their temperatures.
TEST(PositionsTest, NameTheRowsOfTheTables) {
  for (const nn::RopePairs pairs : {nn::RopePairs::kNeighbours, nn::RopePairs::kHalves}) {
    nn::Rope rope({.head_dim = 8, .max_seq_len = 16, .pairs = pairs});
    rope.fill(at::kCPU, at::kDouble);
    const at::Tensor x = at::randn({2, 16, 3, 8}, at::kDouble);
    const at::Tensor positions = at::tensor({2, 3, 12, 13}, at::kLong);
    EXPECT_TRUE(rope.apply(x.index_select(1, positions), positions).equal(rope.apply(x).index_select(1, positions)));
  }
}

// The reference itself notices what it should: without its mask, or with other positions, it is another model.
TEST(ReferenceTest, DistinguishesTheFlavors) {
  SmallModel small{"irope", small_spec("llama4", "debugmodel_irope"), 32};
  const model::Model model = *model::build(small.spec, {.seq_len = 32});
  const Weights weights = draw_weights(model, small.spec, 3);
  ReferenceBatch batch{.tokens = at::randint(small.spec.vocab_size, {1, kLength}, at::kLong)};
  const at::Tensor one = reference_logits(small.spec, weights, batch, 32);
  batch.documents = draw_documents(1, kLength);
  EXPECT_GT(relative_error(reference_logits(small.spec, weights, batch, 32), one), 0.1);
  batch.documents.reset();
  small.spec.attention_chunk = 1000;
  EXPECT_GT(relative_error(reference_logits(small.spec, weights, batch, 32), one), 0.1);
  small.spec.attention_chunk = 7;
  small.spec.nope_ends_step = true;
  EXPECT_GT(relative_error(reference_logits(small.spec, weights, batch, 32), one), 0.1);
}

}  // namespace
}  // namespace titan::testing
