#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/common/plan/models/all_subsets.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/parallel/checkpointed_block.h"
#include "worker/rank/parallel/activation_checkpoint.h"

namespace titan::parallel {
namespace {

using nn::OpCall;
using testing::CheckpointedBlock;

// The items among which a budget may choose: a reduce-scatter counts together with the product that feeds it, and
// nothing of the experts is an item.
struct Choosable {
  std::vector<KnapsackItem> items;
  std::vector<int> item_of_call;  // -1: always recomputed.
  int64_t bytes = 0;              // Bytes of all items.
};

Choosable choosable(const std::vector<OpCall>& calls) {
  Choosable result;
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool fed = i > 0 && calls[i - 1].feeds == static_cast<int>(i);
    if (calls[i].kind == OpCall::Kind::kGroupedProduct || calls[i].kind == OpCall::Kind::kExchange) {
      result.item_of_call.push_back(-1);
    } else if (calls[i].feeds >= 0) {
      result.item_of_call.push_back(static_cast<int>(result.items.size()));  // The item that the next call adds.
    } else {
      result.item_of_call.push_back(static_cast<int>(result.items.size()));
      result.items.push_back({calls[i].bytes, calls[i].flops + (fed ? calls[i - 1].flops : 0)});
      result.bytes += calls[i].bytes;
    }
  }
  return result;
}

struct BudgetCase {
  const char* name;
  mesh::Degrees degrees;
  int ranks;
  bool asynchronous = false;
};
const BudgetCase kBudgetCases[] = {{"one rank", {.dp_shard = 1}, 1},
                                   {"tp 2", {.dp_shard = 1, .tp = 2, .etp = 2}, 2},
                                   {"tp 2, asynchronous", {.dp_shard = 1, .tp = 2, .etp = 2}, 2, true},
                                   {"cp 2", {.dp_shard = 1, .cp = 2}, 2},
                                   {"ep 2", {.dp_shard = 2, .ep = 2}, 2},
                                   {"ep 2, tp 2, etp 1", {.dp_shard = 1, .tp = 2, .ep = 2, .etp = 1}, 2}};

// Runs one layer at rising budgets: each choice is the best of all subsets within its bytes, the second pass computes
// the planned products, a larger budget never saves less or recomputes more, gradients have the same bits, and ranks
// that share collectives make the same choice.
void rise(testing::ThreadRank& self, const BudgetCase& one, const std::string& family, const std::string& flavor,
          std::vector<std::vector<bool>>& chosen_by_rank) {
  model::ParallelOptions options;
  options.async_tensor_parallel = one.asynchronous;
  CheckpointedBlock test(family, flavor, at::kDouble, 1, self.mesh.get(), options);
  test.input += self.rank;
  const std::vector<at::Tensor> expected = test.plain();
  int64_t previous = -1;
  double again = std::numeric_limits<double>::infinity();
  for (const double budget : {0.0, 0.15, 0.3, 0.5, 0.7, 0.9, 1.0}) {
    SCOPED_TRACE(budget);
    std::optional<ParetoPoint> chosen;
    const auto policy = memory_budget_policy(budget, [&](const auto&, const ParetoPoint& choice) { chosen = choice; });
    test.first_pass(*policy);
    const std::vector<OpCall> calls = test.saved.calls();
    const Choosable choice = choosable(calls);
    ASSERT_TRUE(chosen.has_value());
    const int64_t limit = static_cast<int64_t>(budget * static_cast<double>(choice.bytes));
    EXPECT_LE(chosen->bytes, limit);
    EXPECT_EQ(chosen->flops, testing::best_of_all_subsets(choice.items, limit));
    test.first_pass(*policy);
    EXPECT_EQ(test.saved.bytes(), chosen->bytes);
    EXPECT_GE(test.saved.bytes(), previous);
    previous = test.saved.bytes();
    testing::expect_same_bits(test.second_pass(), expected);
    double planned = 0, products = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (choice.item_of_call[i] >= 0 && chosen->taken[choice.item_of_call[i]]) continue;
      planned += calls[i].flops;
      if (calls[i].kind != OpCall::Kind::kAttention) products += calls[i].flops;
    }
    EXPECT_EQ(static_cast<double>(test.products_again), products);
    EXPECT_LE(planned, again);
    again = planned;
    chosen_by_rank[self.rank].insert(chosen_by_rank[self.rank].end(), chosen->taken.begin(), chosen->taken.end());
  }
}

TEST(MemoryBudgetTest, LargerBudgetsSaveMoreAndRecomputeLess) {
  for (const auto& [family, flavor] : std::vector<std::pair<const char*, const char*>>{{"llama3", "debugmodel"},
                                                                                       {"llama4", "debugmodel"},
                                                                                       {"deepseek_v3", "debugmodel"},
                                                                                       {"qwen3", "debugmodel_moe"},
                                                                                       {"gpt_oss", "debugmodel"}}) {
    for (const BudgetCase& one : kBudgetCases) {
      if (one.degrees.ep > 1 && family == std::string("llama3")) continue;
      SCOPED_TRACE(absl::StrCat(family, ", ", one.name));
      std::vector<std::vector<bool>> chosen(one.ranks);
      testing::run_ranks(one.degrees, one.ranks, testing::every_axis(),
                         [&, family = family, flavor = flavor](testing::ThreadRank& self) {
                           rise(self, one, family, flavor, chosen);
                         });
      for (const std::vector<bool>& other : chosen) EXPECT_EQ(other, chosen[0]);
    }
  }
}

}  // namespace
}  // namespace titan::parallel
