// Tests every family split over tensor, expert and context axes: the same loss and gradients as on one rank.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/split_runs.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/model.h"

namespace titan::testing {
namespace {

constexpr int64_t kTokens = 24;

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
  models::ModelSpec spec = GetParam().spec;
  spec.vocab_size = 48;
  const Task task = draw_task(spec, 5);
  const Totals want = run_whole(task);
  for (const Split& split : splits(task.spec)) {
    SCOPED_TRACE(split.what);
    expect_same(run_split(task, split), want);
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
