#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using comm::LedgerCounts;
using testing::expect_same_bits;
using testing::expect_same_training;
using testing::RankOutcome;
using testing::train_world;
using testing::TrainingPlan;

RankOutcome one_rank(const TrainingPlan& plan) { return train_world(plan, {}, 1)[0]; }

struct MeshCase {
  const char* name;
  mesh::Degrees degrees;
  int world;

  friend void PrintTo(const MeshCase& value, std::ostream* out) { *out << value.name; }
};

class MeshInvarianceTest : public ::testing::TestWithParam<MeshCase> {};

// Loss, gradients, norm and weights on every data-parallel mesh equal one rank's.
TEST_P(MeshInvarianceTest, TrainsAsOneRank) {
  const TrainingPlan plan;
  expect_same_training(one_rank(plan), train_world(plan, GetParam().degrees, GetParam().world), testing::kExact);
}

// Bytes and calls of one step follow from the split. Each unit is gathered for the forward pass. It is gathered again
// for the backward pass, except the head and the last layer (which stay gathered) and the embedding (whose gradient
// needs no weights). Each unit is reduced once, and summed over replicas once.
TEST_P(MeshInvarianceTest, TrafficEqualsClosedForm) {
  const TrainingPlan plan;
  const mesh::Mesh mesh = mesh::Mesh::create(GetParam().degrees, GetParam().world).value();
  const int64_t shards = mesh.size(mesh::Axis::kFsdp);
  const int64_t replicas = mesh.size(mesh::Axis::kReplicate);
  const auto model = model::build(plan.spec, {.seq_len = plan.seq_len}).value();
  comm::LedgerEntry gather, reduce, sum;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    int64_t shard = 0;                                       // Elements of one rank's padded piece.
    const int units = i + 1 == model.blocks.size() ? 2 : 1;  // The head's matrix is a unit separate from its norm.
    for (const auto& parameter : model.blocks[i]->parameters()) {
      const int64_t row = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
      shard += (parameter.shape[0] + shards - 1) / shards * row;
    }
    const int gathers = i == 0 || i + 2 >= model.blocks.size() ? 1 : 2;
    gather = {gather.calls + gathers * units, gather.bytes + gathers * shards * shard * 8};
    reduce = {reduce.calls + units, reduce.bytes + shards * shard * 8};
    sum = {sum.calls + units, sum.bytes + shard * 8};
  }
  LedgerCounts expected;
  if (shards > 1) expected = {{"fsdp/all_gather", gather}, {"fsdp/reduce_scatter", reduce}};
  if (replicas > 1) expected["dp_replicate/all_reduce"] = sum;
  for (const RankOutcome& rank : train_world(plan, GetParam().degrees, GetParam().world)) {
    EXPECT_EQ(rank.step_traffic.size(), expected.size());
    for (const auto& [key, entry] : expected) {
      const auto found = rank.step_traffic.find(key);
      ASSERT_NE(found, rank.step_traffic.end()) << key;
      EXPECT_EQ(found->second.calls, entry.calls) << key;
      EXPECT_EQ(found->second.bytes, entry.bytes) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, MeshInvarianceTest,
                         ::testing::Values(MeshCase{"fsdp2", {.dp_shard = 2}, 2},
                                           MeshCase{"ddp2", {.dp_replicate = 2, .dp_shard = 1}, 2},
                                           MeshCase{"hsdp2x2", {.dp_replicate = 2, .dp_shard = 2}, 4},
                                           MeshCase{"fsdp4", {.dp_shard = 4}, 4}),
                         [](const auto& info) { return std::string(info.param.name); });

// Splitting a step into microbatches changes neither loss nor gradients. Replicas are still summed once per step.
TEST(GradientAccumulationTest, EqualsOneLargeBatch) {
  TrainingPlan plan;
  const RankOutcome whole = one_rank(plan);
  plan.microbatches = 2;
  expect_same_training(whole, {one_rank(plan)}, testing::kExact);
  plan.microbatches = 1;
  const auto single = train_world(plan, {.dp_replicate = 2, .dp_shard = 1}, 2);
  plan.microbatches = 2;
  const auto split = train_world(plan, {.dp_replicate = 2, .dp_shard = 1}, 2);
  expect_same_training(whole, split, testing::kExact);
  EXPECT_EQ(split[0].step_traffic.at("dp_replicate/all_reduce"), single[0].step_traffic.at("dp_replicate/all_reduce"));
}

// Training with logits in parts of the vocabulary is the same, however the vocabulary, rows, layers and backward pass
// are split.
TEST(LogitsInPartsTest, TrainAsWholeLogits) {
  TrainingPlan plan;
  plan.spec.vocab_size = 300;  // Several parts, the last of them short, on one rank and on two.
  plan.spec.ffn_hidden = 48;
  plan.steps = 2;
  const RankOutcome whole = one_rank(plan);
  plan.max_logit_bytes = 1;
  const RankOutcome parts = one_rank(plan);
  expect_same_training(whole, {parts}, testing::kExact);
  const auto head_gradient = [](const RankOutcome& one) { return one.pieces.at("gradient.output.weight").value; };
  EXPECT_FALSE(head_gradient(whole).equal(head_gradient(parts))) << "nothing was computed in another way";
  EXPECT_NEAR(parts.evaluated[0], whole.evaluated[0], testing::kExact);
  expect_same_training(whole, train_world(plan, {.dp_shard = 2}, 2), testing::kExact);
  for (const bool sequence : {true, false}) {
    plan.parallel.sequence_parallel = sequence;
    expect_same_training(whole, train_world(plan, {.tp = 2}, 2), testing::kExact);
  }
  plan.parallel = {.async_tensor_parallel = true};
  expect_same_training(whole, train_world(plan, {.cp = 2, .tp = 2}, 4), testing::kExact);
  plan.parallel = {.loss_parallel = false};
  expect_same_training(whole, train_world(plan, {.tp = 2}, 2), testing::kExact);
  plan.parallel = {};
  plan.spec.tied_embeddings = true;
  plan.spec.n_layers = 4;
  plan.max_logit_bytes = 0;
  const RankOutcome tied = one_rank(plan);
  plan.max_logit_bytes = 1;
  for (const char* schedule : {"1F1B", "ZBVZeroBubble"}) {
    plan.schedule = schedule;
    expect_same_training(tied, train_world(plan, {.pp = 2, .tp = 2}, 4), testing::kExact);
  }
}

// A custom loss gets all logits, however many there are.
TEST(LogitsInPartsTest, CustomLossGetsAllLogits) {
  models::ModelSpec spec = testing::small_llama();
  spec.vocab_size = 300;
  model::Model model = model::build(spec, {.seq_len = 16, .max_logit_bytes = 1}).value();
  EXPECT_TRUE(model.loss.by_parts);
  nn::MicrobatchContext context;
  context.labels = at::zeros({2, 16}, at::kLong);
  std::vector<int64_t> seen;
  model.loss = [&](const at::Tensor& logits, const at::Tensor&) {
    seen = logits.sizes().vec();
    return logits.sum();
  };
  nn::Block& head = *model.blocks.back();
  for (nn::Parameter& parameter : head.parameters()) parameter.weight = at::ones(parameter.shape);
  dynamic_cast<nn::HasLoss&>(head).loss(at::ones({2, 16, 32}), context, model.loss);
  EXPECT_EQ(seen, (std::vector<int64_t>{2, 16, 300}));
}

// Recomputation and each policy for gathered weights give the same bits, on one rank and on two.
TEST(PolicyTest, RecomputationAndReshardingChangeNoBit) {
  TrainingPlan plan;
  plan.steps = 2;
  for (const int world : {1, 2}) {
    plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
    const auto plain = train_world(plan, {}, world);
    for (const char* reshard : {"always", "never", "default"}) {
      for (const parallel::CheckpointOptions& ac :
           {parallel::CheckpointOptions{.mode = "full"}, parallel::CheckpointOptions{.mode = "selective"},
            parallel::CheckpointOptions{.mode = "selective", .selective_ac_option = "op"},
            parallel::CheckpointOptions{.mode = "memory_budget"}}) {
        plan.sharding.reshard_after_forward = reshard;
        plan.sharding.ac = ac;
        const auto outcome = train_world(plan, {}, world);
        for (int rank = 0; rank < world; ++rank) expect_same_bits(plain[rank], outcome[rank]);
      }
    }
  }
}

// Every mesh has the same mixed precision, with bf16 weights and fp32 reductions and shards. Meshes differ only by
// rounding.
TEST(PrecisionTest, MixedPrecisionOnEveryMesh) {
  TrainingPlan plan;
  plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
  const RankOutcome one = one_rank(plan);
  EXPECT_EQ(one.pieces.at("value.norm.weight").value.scalar_type(), at::kFloat);
  const auto two = train_world(plan, {}, 2);
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(two[0].losses[step], one.losses[step], 2e-2);
    EXPECT_NEAR(two[0].norms[step], one.norms[step], 2e-2 * one.norms[step]);
  }
  // Gathers send half the bytes; reductions still send fp32.
  const auto& traffic = two[0].step_traffic;
  plan.sharding.precision = {at::kFloat, at::kFloat, at::kFloat};
  const auto full = train_world(plan, {}, 2);
  EXPECT_EQ(2 * traffic.at("fsdp/all_gather").bytes, full[0].step_traffic.at("fsdp/all_gather").bytes);
  EXPECT_EQ(traffic.at("fsdp/reduce_scatter").bytes, full[0].step_traffic.at("fsdp/reduce_scatter").bytes);
}

// The same run twice gives the same bits.
TEST(DeterminismTest, RepeatsBitForBit) {
  TrainingPlan plan;
  plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
  const auto first = train_world(plan, {.dp_replicate = 2, .dp_shard = 2}, 4);
  const auto second = train_world(plan, {.dp_replicate = 2, .dp_shard = 2}, 4);
  for (int rank = 0; rank < 4; ++rank) expect_same_bits(first[rank], second[rank]);
}

}  // namespace
}  // namespace titan::runtime
