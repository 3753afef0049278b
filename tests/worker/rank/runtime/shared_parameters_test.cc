#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/nn/layers.h"

namespace titan::runtime {
namespace {

using ::testing::HasSubstr;
using testing::TrainingPlan;

const nn::Init kNormal{.kind = nn::Init::Kind::kNormal, .std = 0.3};

// Declares three parameters, of which other blocks read the second and the third.
class First : public nn::Block {
 public:
  explicit First(const models::ModelSpec& spec)
      : Block("tok_embeddings"),
        embedding(declare(), "tok_embeddings.weight", spec.vocab_size, spec.dim, kNormal),
        gain(&declare()("gain.weight", {spec.dim}, {.kind = nn::Init::Kind::kOnes})),
        shift(&declare()("shift.weight", {spec.dim}, kNormal)) {}
  at::Tensor forward(const at::Tensor& tokens, const nn::MicrobatchContext&) override {
    return embedding.forward(tokens) * gain->weight;
  }

  nn::Embedding embedding;
  nn::Parameter *gain, *shift;
};

class Layer : public nn::Block {
 public:
  Layer(const models::ModelSpec& spec, int64_t index, nn::Parameter* shift)
      : Block(absl::StrCat("layers.", index)),
        linear(declare(), name() + ".w.weight", spec.dim, spec.dim, kNormal),
        shift_(shift) {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override {
    const at::Tensor step = at::tanh(linear.forward(input));
    return input + (shift_ == nullptr ? step : step * shift_->weight);
  }
  std::vector<nn::Parameter*> shared_parameters() override {
    return shift_ == nullptr ? std::vector<nn::Parameter*>() : std::vector{shift_};
  }

  nn::Linear linear;

 private:
  nn::Parameter* shift_;
};

class Last : public nn::Block {
 public:
  Last(const models::ModelSpec& spec, First& first)
      : Block("output"), linear(declare(), "output.weight", spec.dim, spec.vocab_size, kNormal), first_(first) {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override {
    return linear.forward(input * first_.gain->weight + first_.shift->weight);
  }
  std::vector<nn::Parameter*> shared_parameters() override { return {first_.shift, first_.gain}; }

  nn::Linear linear;

 private:
  First& first_;
};

// In the flavor "inner" layers share parameters, too.
absl::StatusOr<model::Model> build(const models::ModelSpec& spec, const model::BuildOptions&) {
  model::Model model;
  auto first = std::make_unique<First>(spec);
  auto last = std::make_unique<Last>(spec, *first);
  nn::Parameter* shift = spec.flavor == "inner" ? first->shift : nullptr;
  model.blocks.push_back(std::move(first));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    model.blocks.push_back(std::make_unique<Layer>(spec, layer, layer == 1 ? shift : nullptr));
  }
  model.blocks.push_back(std::move(last));
  return model;
}

TrainingPlan plan_of(const std::string& flavor) {
  static const absl::Status added = model::add_family({"sharing", build, {}, {}});
  EXPECT_TRUE(added.ok()) << added;
  TrainingPlan plan;
  plan.spec.name = "sharing";
  plan.spec.flavor = flavor;
  return plan;
}

// Parameters that several blocks read, and unshared ones in the block that declares them, get one gradient from all
// readers.
TEST(SharedParametersTest, TrainAlikeOnEveryMesh) {
  for (const char* flavor : {"ends", "inner"}) {
    for (const char* policy : {"default", "always", "never"}) {
      SCOPED_TRACE(absl::StrCat(flavor, ", ", policy));
      TrainingPlan plan = plan_of(flavor);
      plan.sharding.reshard_after_forward = policy;
      const auto one = testing::train_world(plan, {.dp_shard = 1}, 1);
      testing::expect_same_training(one[0], testing::train_world(plan, {.dp_shard = 2}, 2), 1e-10);
      testing::expect_same_training(one[0], testing::train_world(plan, {.dp_replicate = 2, .dp_shard = 2}, 4), 1e-10);
      if (flavor == std::string("inner")) continue;
      testing::expect_same_training(one[0], testing::train_world(plan, {.pp = 2, .dp_shard = 1}, 2), 1e-10);
      testing::expect_same_training(one[0], testing::train_world(plan, {.pp = 2, .dp_shard = 2}, 4), 1e-10);
    }
  }
}

TEST(SharedParametersTest, PipelineStagesShareOnlyAtTheEnds) {
  try {
    testing::train_world(plan_of("inner"), {.pp = 2, .dp_shard = 1}, 2);
    FAIL() << "it trained";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("block layers.1 shares shift.weight; over a pipeline only the last block"));
  }
}

}  // namespace
}  // namespace titan::runtime
