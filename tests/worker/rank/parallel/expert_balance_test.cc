#include "worker/rank/parallel/expert_balance.h"

#include <gtest/gtest.h>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/nn/plain_moe.h"
#include "worker/rank/comm/fake_backend.h"
#include "worker/rank/comm/local_store.h"
#include "worker/rank/parallel/expert.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

class MoeLayer : public nn::Block, public nn::HasExperts {
 public:
  MoeLayer(int64_t index, const nn::MoeOptions& options)
      : Block("layers." + std::to_string(index)),
        moe(declare(), declare_buffer(name() + ".moe.expert_bias"), name() + ".moe", options) {
    buffers()[0].value = at::zeros({moe.num_experts()}, at::kDouble);
  }
  void fill() {
    for (nn::Parameter& parameter : parameters()) {
      at::Tensor part = testing::moe_value(parameter.fqn, parameter.global_shape, at::kDouble);
      for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
        part = part.narrow(static_cast<int64_t>(dim), parameter.offset[dim], parameter.shape[dim]);
      }
      parameter.weight = part.contiguous();
    }
  }
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override {
    return moe.forward(input, context.counting);
  }
  nn::MixtureOfExperts* mixture() override { return &moe; }
  nn::MixtureOfExperts moe;
};

class DenseLayer : public nn::Block {
 public:
  DenseLayer() : Block("layers.9") {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override { return input; }
};

// Applies the paper's rule to the counts of all tokens, one expert at a time.
void move_plainly(std::vector<double>& bias, const std::vector<int64_t>& counts, double coefficient) {
  double sum = 0, moved = 0;
  for (const int64_t count : counts) sum += static_cast<double>(count);
  std::vector<double> delta(counts.size());
  for (size_t e = 0; e < counts.size(); ++e) {
    const double over = static_cast<double>(counts[e]) - sum / static_cast<double>(counts.size());
    delta[e] = over > 0 ? -coefficient : over < 0 ? coefficient : 0;
    moved += delta[e];
  }
  for (size_t e = 0; e < counts.size(); ++e) bias[e] += delta[e] - moved / static_cast<double>(counts.size());
}

const std::set<Axis> kBalanceAxes = {Axis::kTensor, Axis::kExpert, Axis::kLoss, Axis::kPipeline};
constexpr double kCoefficient = 0.05;  // Large, so that routing changes within a few steps.

// Trains several steps of two microbatches. Each layer runs twice, as in a recomputed block; each pipeline rank holds
// one layer.
void check(const mesh::Degrees& degrees, int ranks, bool sequence) {
  const nn::MoeOptions options = testing::moe_kinds()[2].options;  // Groups, norm, shared experts.
  testing::run_ranks(degrees, ranks, kBalanceAxes, [&](testing::ThreadRank& self) {
    const mesh::Mesh& mesh = self.mesh->mesh();
    const int stage = mesh.index(self.rank, Axis::kPipeline), stages = mesh.size(Axis::kPipeline);
    const int data_rank = mesh.index(self.rank, Axis::kLoss), data_ranks = mesh.size(Axis::kLoss);
    MoeLayer whole(2 * stage, options);  // For the oracle: routes all tokens.
    MoeLayer own(2 * stage, options);
    const comm::Group& tensor = self.mesh->group(Axis::kTensor);
    split_experts(own.moe, *self.mesh, {.group = &tensor, .sequence = sequence});
    whole.fill();
    own.fill();
    DenseLayer dense;
    ExpertBalance balance({&own, &dense}, kCoefficient, *self.mesh, at::kCPU);
    std::vector<double> expected(8, 0.0);
    for (int step = 0; step < 4; ++step) {
      std::vector<int64_t> counts(8, 0);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const std::string name = "tokens " + std::to_string(2 * step + microbatch);
        const at::Tensor all = testing::moe_value(name, {2 * data_ranks, 8, options.dim}, at::kDouble);
        const at::Tensor chosen = whole.moe.route(all.flatten(0, 1)).counts;
        for (int64_t e = 0; e < 8; ++e) counts[e] += chosen[e].item<int64_t>();
        at::Tensor x = all.narrow(0, 2 * data_rank, 2);
        if (sequence) x = x.narrow(1, tensor.rank() * 8 / tensor.size(), 8 / tensor.size());
        nn::MicrobatchContext context;
        own.forward(x, context);
        context.counting = false;
        own.forward(x, context);
      }
      const bool skipped = step == 2;
      balance.finish_step(at::scalar_tensor(skipped ? 1.0 : 0.0));
      if (!skipped) move_plainly(expected, counts, kCoefficient);
      whole.buffers()[0].value.copy_(at::tensor(expected, at::kDouble));
      EXPECT_LE((own.buffers()[0].value - at::tensor(expected, at::kDouble)).abs().max().item<double>(), 1e-15);

      const std::vector<ExpertLoad> loads = balance.loads(2 * stages, 8);
      ASSERT_EQ(loads.size(), static_cast<size_t>(stages));
      EXPECT_EQ(loads[stage].layer, "layers." + std::to_string(2 * stage));
      EXPECT_EQ(loads[stage].tokens, counts);
    }
    EXPECT_GT(own.buffers()[0].value.abs().max().item<double>(), 0);
  });
}

TEST(ExpertBalanceTest, BiasesMoveAlikeOnEveryMesh) {
  check({}, 1, true);
  check({.dp_shard = 4, .ep = 2}, 4, true);
  check({.dp_replicate = 2, .dp_shard = 2, .ep = 2}, 4, true);
  check({.tp = 2, .etp = 2}, 2, true);
  for (const bool sequence : {true, false}) check({.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1}, 4, sequence);
  check({.pp = 2, .dp_shard = 2, .ep = 2}, 4, true);
  check({.dp_shard = 2, .cp = 2, .ep = 4}, 4, true);
}

TEST(ExpertBalanceTest, WithoutCoefficientOnlyCounts) {
  testing::run_ranks({}, 1, kBalanceAxes, [&](testing::ThreadRank& self) {
    MoeLayer layer(0, testing::moe_kinds()[3].options);
    layer.fill();
    ExpertBalance balance({&layer}, 0, *self.mesh, at::kCPU);
    balance.finish_step();
    EXPECT_EQ(balance.loads(1, 8)[0].tokens, std::vector<int64_t>(8, 0)) << "nothing ran";
    layer.forward(testing::moe_value("x", {1, 5, 12}, at::kDouble), {});
    balance.finish_step();
    const std::vector<int64_t> tokens = balance.loads(1, 8)[0].tokens;
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 10);
    EXPECT_TRUE(layer.buffers()[0].value.eq(0).all().item<bool>());
  });
}

// A pipeline stage without experts takes part in the sum with a tensor on its device: groups of a GPU refuse a CPU
// tensor. A device without memory stands for the GPU here.
TEST(ExpertBalanceTest, AStageWithoutExpertsCountsOnTheDevice) {
  const std::unique_ptr<device::Device> device = comm::make_fake_device();
  ASSERT_EQ(device->torch_device().type(), at::kMeta);
  comm::Ledger ledger;
  const comm::DeviceMesh mesh(mesh::Mesh::create({.pp = 2}, 2).value(), {Axis::kPipeline, Axis::kLoss}, *device, ledger,
                              {.store = c10::make_intrusive<comm::LocalStore>()});
  DenseLayer dense;
  ExpertBalance balance({&dense}, kCoefficient, mesh, device->torch_device());
  balance.finish_step();
  // The sum has no values to read, so only the call counts.
  EXPECT_THROW((void)balance.loads(4, 8), std::exception);
  const comm::LedgerCounts counts = ledger.counts();
  ASSERT_TRUE(counts.contains("pp/all_reduce"));
  EXPECT_EQ(counts.at("pp/all_reduce").bytes, 4 * 9 * 8);
  EXPECT_THROW(mesh.group(Axis::kPipeline).all_reduce(at::zeros({1})), c10::Error) << "a tensor of another device";
}

TEST(ExpertLoadTest, Figures) {
  const ExpertLoad even{"layers.1", {5, 5, 5, 5}}, one{"layers.3", {20, 0, 0, 0}}, none{"layers.4", {0, 0}};
  EXPECT_DOUBLE_EQ(even.max_over_mean(), 1);
  EXPECT_DOUBLE_EQ(even.entropy(), 1);
  EXPECT_EQ(even.idle(), 0);
  EXPECT_DOUBLE_EQ(one.max_over_mean(), 4);
  EXPECT_DOUBLE_EQ(one.entropy(), 0);
  EXPECT_EQ(one.idle(), 3);
  EXPECT_DOUBLE_EQ(none.entropy(), 1);
  EXPECT_DOUBLE_EQ(none.max_over_mean(), 1);
  const auto figures = balance_figures({even, one});
  const std::vector<std::pair<std::string, double>> expected = {
      {"moe/max_over_mean", 4},          {"moe/entropy", 0},          {"moe/idle_experts", 3},
      {"moe/layers.1/max_over_mean", 1}, {"moe/layers.1/entropy", 1}, {"moe/layers.3/max_over_mean", 4},
      {"moe/layers.3/entropy", 0}};
  EXPECT_EQ(figures, expected);
  EXPECT_TRUE(balance_figures({}).empty());
}

}  // namespace
}  // namespace titan::parallel
