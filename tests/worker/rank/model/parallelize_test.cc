// Tests every family split over tensor, expert and context axes: the same loss and gradients as on one rank.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/parameter_part.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/attention_masks.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/parallel/context.h"

namespace titan::testing {
namespace {

using mesh::Axis;

constexpr int64_t kRows = 4, kTokens = 24;

struct Totals {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // Gradients of whole parameters.
};

struct Task {
  models::ModelSpec spec;
  Weights weights;
  nn::MicrobatchContext batch;
};

// Adds this rank's part of forward, loss and gradients to the totals.
void run_part(const model::Model& model, const Task& task, const nn::MicrobatchContext& share, bool count_loss,
              const std::function<bool(const nn::Parameter&)>& count, std::mutex& mutex, Totals& totals) {
  set_weights(model, task.weights, at::kDouble);
  std::vector<nn::Parameter*> parameters;
  std::vector<at::Tensor> leaves;
  at::Tensor x = share.tokens;
  for (const auto& block : model.blocks) {
    x = block->forward(x, share);
    for (nn::Parameter& p : block->parameters()) {
      parameters.push_back(&p);
      leaves.push_back(p.weight);
    }
  }
  const at::Tensor loss = model.loss(x, share.labels);
  const auto gradients = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  const std::lock_guard<std::mutex> lock(mutex);
  if (count_loss) totals.loss += loss.item<double>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& p = *parameters[i];
    if (!gradients[i].defined() || !count(p)) continue;
    at::Tensor& whole = totals.gradients[p.fqn];
    if (!whole.defined()) whole = at::zeros(p.global_shape, at::kDouble);
    part_of(whole, p).add_(gradients[i]);
  }
}

struct Split {
  std::string what;
  mesh::Degrees degrees;
  int world;
  bool sequence = true, loss_parallel = true, async = false;
  std::string rotate = "allgather";
  parallel::LoadBalance balance = parallel::LoadBalance::kHeadTail;
};

Totals run_split(const Task& task, const Split& split) {
  Totals totals;
  std::mutex mutex;
  run_ranks(split.degrees, split.world, every_axis(), [&](ThreadRank& self) {
    const mesh::Mesh& mesh = self.mesh->mesh();
    model::Model model = *model::build(task.spec, {.seq_len = kTokens});
    const absl::Status done = model.parallelize(model, {.mesh = self.mesh.get(),
                                                        .sequence_parallel = split.sequence,
                                                        .loss_parallel = split.loss_parallel,
                                                        .async_tensor_parallel = split.async,
                                                        .rotate_method = split.rotate});
    ASSERT_TRUE(done.ok()) << done;
    nn::MicrobatchContext rows = task.batch;
    const int64_t count = kRows / mesh.size(Axis::kBatch), first = count * mesh.index(self.rank, Axis::kBatch);
    for (at::Tensor* tensor : {&rows.tokens, &rows.labels, &rows.documents}) {
      if (tensor->defined()) *tensor = tensor->narrow(0, first, count);
    }
    const nn::MicrobatchContext share = parallel::shard_microbatch(rows, {.group = &self.mesh->group(Axis::kContext),
                                                                          .balance = split.balance,
                                                                          .layers = model::attention_masks(task.spec)});
    const bool first_tensor_rank = mesh.index(self.rank, Axis::kTensor) == 0;
    const bool experts_on_tensor_ranks = mesh.size(Axis::kExpert) > 1 && mesh.size(Axis::kExpertTensor) == 1;
    run_part(
        model, task, share, first_tensor_rank,
        [&](const nn::Parameter& p) {
          if (p.expert && experts_on_tensor_ranks) return true;  // Each tensor rank has other tokens.
          return first_tensor_rank || p.on_tensor_axis != nn::TensorAxisPlacement::kReplicate;
        },
        mutex, totals);
  });
  return totals;
}

Task make_task(const SmallModel& small, uint64_t seed) {
  Task task{small.spec, {}, {}};
  task.spec.vocab_size = 48;
  const model::Model model = *model::build(task.spec, {.seq_len = kTokens});
  task.weights = draw_weights(model, task.spec, seed);
  task.batch.tokens = at::randint(task.spec.vocab_size, {kRows, kTokens}, at::kLong);
  task.batch.labels = at::randint(task.spec.vocab_size, {kRows, kTokens}, at::kLong);
  task.batch.labels.masked_fill_(at::rand({kRows, kTokens}).lt(0.2), nn::kIgnoreIndex);
  if (task.spec.mask == models::Mask::kBlockCausal) task.batch.documents = draw_documents(kRows, kTokens);
  return task;
}

Totals run_whole(const Task& task) {
  Totals totals;
  std::mutex mutex;
  const model::Model model = *model::build(task.spec, {.seq_len = kTokens});
  run_part(
      model, task, task.batch, true, [](const nn::Parameter&) { return true; }, mutex, totals);
  return totals;
}

std::vector<Split> splits(const models::ModelSpec& spec) {
  std::vector<Split> all{{"tp2", {.tp = 2}, 2},
                         {"tp2 without sequence parallelism", {.tp = 2}, 2, false, false},
                         {"tp2 overlapped", {.tp = 2}, 2, true, true, true},
                         {"cp2", {.cp = 2}, 2},
                         {"tp2 cp2 around a ring", {.cp = 2, .tp = 2}, 4, true, true, true, "alltoall"}};
  const parallel::LoadBalance by_work = parallel::LoadBalance::kWork;
  all.push_back({"cp4 by work", {.cp = 4}, 4, true, true, false, "allgather", by_work});
  all.push_back({"tp2 cp2 by work around a ring", {.cp = 2, .tp = 2}, 4, true, true, false, "alltoall", by_work});
  if (!spec.moe) return all;
  all.push_back({"ep2", {.ep = 2}, 2});
  all.push_back({"tp2 ep4 etp1", {.tp = 2, .ep = 4, .etp = 1}, 4});
  all.push_back({"tp2 ep2 etp2", {.tp = 2, .ep = 2, .etp = 2}, 4});
  all.push_back({"cp2 ep4", {.cp = 2, .ep = 4}, 4});
  return all;
}

class SplitFamilyTest : public ::testing::TestWithParam<SmallModel> {};

TEST_P(SplitFamilyTest, ComputesTheSameAsOneRank) {
  const Task task = make_task(GetParam(), 5);
  const Totals want = run_whole(task);
  for (const Split& split : splits(task.spec)) {
    SCOPED_TRACE(split.what);
    const Totals got = run_split(task, split);
    EXPECT_NEAR(got.loss / want.loss, 1, 1e-12);
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (const auto& [name, gradient] : want.gradients) {
      EXPECT_LT(relative_error(got.gradients.at(name), gradient), 1e-10) << name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, SplitFamilyTest, ::testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.what; });

// A mesh that does not fit is refused before anything is split, and the error has the numbers.
TEST(SplitRefusalTest, NamesTheNumbers) {
  const auto refusal = [](const models::ModelSpec& spec, const mesh::Degrees& degrees, int world) {
    std::string message;
    std::mutex mutex;
    run_ranks(degrees, world, every_axis(), [&](ThreadRank& self) {
      model::Model model = *model::build(spec, {.seq_len = kTokens});
      const absl::Status status = model.parallelize(model, {.mesh = self.mesh.get()});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      const std::lock_guard<std::mutex> lock(mutex);
      message = std::string(status.message());
    });
    return message;
  };
  models::ModelSpec spec = small_spec("llama3", "8B");
  EXPECT_EQ(refusal(spec, {.tp = 4}, 4),
            "parallelism.tensor_parallel_degree: 4 does not divide the model's 2 key-value heads (possible: 1, 2)");
  spec.n_kv_heads = 4;
  spec.vocab_size = 41;
  EXPECT_EQ(refusal(spec, {.tp = 2}, 2),
            "parallelism.tensor_parallel_degree: 2 does not divide the model's 41 vocabulary entries (possible: 1)");
  spec = small_spec("qwen3", "debugmodel_moe");
  spec.moe->num_experts = 7;
  EXPECT_EQ(refusal(spec, {.ep = 2}, 2),
            "parallelism.expert_parallel_degree: 2 does not divide the model's 7 experts (possible: 1, 7)");
}

}  // namespace
}  // namespace titan::testing
