#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/runtime/engine/stage.h"

namespace titan::runtime {
namespace {

using testing::ThreadRank;
using testing::TrainingPlan;

// All-gathers issued so far, over the ranks that share dense weights and over those that share experts.
struct Gathers {
  int64_t dense = 0, experts = 0;
  bool operator==(const Gathers&) const = default;
  friend void PrintTo(const Gathers& one, std::ostream* out) { *out << one.dense << " + " << one.experts; }
};

Gathers begun(ThreadRank& self, const comm::LedgerCounts& before) {
  const comm::LedgerCounts now = comm::subtract(self.ledger.counts(), before);
  const auto calls = [&](const char* name) { return now.count(name) > 0 ? now.at(name).calls : 0; };
  return {calls("fsdp/all_gather"), calls("efsdp/all_gather")};
}

void add(Gathers& sum, const EngineBlock& block) {
  for (const parallel::ShardUnit* unit : block.units) {
    ++(absl::EndsWith(unit->name(), ".experts") ? sum.experts : sum.dense);
  }
}

TrainingPlan plan_with_experts(const std::string& recompute) {
  TrainingPlan plan;
  plan.spec.n_layers = 4;
  plan.spec.moe = models::MoeSpec{.num_experts = 8, .top_k = 2, .hidden = 24, .first_layer = 1};
  plan.sharding.reshard_after_forward = "always";
  plan.sharding.ac.mode = recompute;
  return plan;
}

// While a layer computes, the next one's weights are being gathered, dense ones and experts, each over the ranks that
// share them: in the forward pass and, in reverse order, in the backward pass.
TEST(PrefetchTest, ExpertsArePrefetchedWithTheirLayer) {
  testing::run_ranks({.dp_shard = 4, .ep = 2}, 4, testing::every_axis(), [](ThreadRank& self) {
    const TrainingPlan plan = plan_with_experts("full");
    testing::RankModel model = testing::build_rank(plan, self);
    model.sharded->init_weights(7);
    const auto& blocks = dynamic_cast<Stage&>(*model.sharded->stages().at(0)).blocks();
    const comm::LedgerCounts before = self.ledger.counts();
    std::vector<Gathers> seen;  // At the start of each layer: forward, then again in reverse.
    for (const EngineBlock& block : blocks) {
      auto* layer = dynamic_cast<model::DecoderLayer*>(block.block);
      if (layer == nullptr) continue;
      layer->attention->seams.input = [&](const at::Tensor& x) {
        seen.push_back(begun(self, before));
        return x;
      };
    }
    testing::forward_backward(plan, *self.mesh, model, 0);

    std::vector<Gathers> expected;
    Gathers sum;
    add(sum, blocks[0]), add(sum, blocks[1]);
    for (size_t i = 1; i + 1 < blocks.size(); ++i) {
      add(sum, blocks[i + 1]);
      expected.push_back(sum);
    }
    add(sum, blocks.back());
    for (size_t i = blocks.size() - 1; i-- > 1;) {
      if (expected.size() == blocks.size() - 2) add(sum, blocks[i]);  // Issued with the head.
      if (i > 1) add(sum, blocks[i - 1]);                             // The embedding's gradient needs no weights.
      expected.push_back(sum);
    }
    EXPECT_EQ(seen, expected);
    EXPECT_GT(sum.experts, 0);
  });
}

}  // namespace
}  // namespace titan::runtime
