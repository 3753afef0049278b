#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/worker/comm/thread_ranks.h"
#include "worker/nn/loss.h"
#include "worker/optim/grad_norm.h"
#include "worker/runtime/sharded_model.h"

namespace titan::testing {

inline models::ModelSpec small_llama() {
  models::ModelSpec spec;
  spec.name = "llama3";
  spec.flavor = "test";
  spec.dim = 32;
  spec.n_layers = 3;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 50;  // Neither this nor the next divides by the meshes below.
  spec.ffn_hidden = 49;
  spec.max_seq_len = 64;
  return spec;
}

struct TrainingPlan {
  models::ModelSpec spec = small_llama();
  runtime::ShardingOptions sharding{.precision = {at::kDouble, at::kDouble, at::kDouble}};
  int64_t global_batch = 4;
  int64_t seq_len = 16;
  int microbatches = 1;  // Per rank and step.
  int steps = 3;
};

// What one rank saw: its rows of everything, keyed by "gradient.<FQN>" (of the first step) and "value.<FQN>" (at the
// end).
struct RankOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, std::pair<int64_t, at::Tensor>> rows;  // First row, rows.
  comm::LedgerCounts step_traffic;                             // Of the last step.
};

// Rows [begin, end) of the global batch of one step; the same on every mesh. Some labels are ignored.
inline nn::MicrobatchContext rows_of_step(const TrainingPlan& plan, int step, int64_t begin, int64_t end) {
  at::Tensor tokens = at::arange(plan.global_batch * (plan.seq_len + 1), at::kLong).view({plan.global_batch, -1});
  tokens = (tokens * 7919 + 31 * step + tokens.div(13, "floor")).remainder(plan.spec.vocab_size).slice(0, begin, end);
  nn::MicrobatchContext context;
  context.tokens = tokens.slice(1, 0, plan.seq_len).clone();
  context.labels = tokens.slice(1, 1).clone();
  context.labels.masked_fill_(context.labels.eq(3), nn::kIgnoredLabel);
  return context;
}

inline RankOutcome train_rank(const TrainingPlan& plan, ThreadRank& self) {
  const comm::DeviceMesh& mesh = *self.mesh;
  auto built = model::build(plan.spec, {.seq_len = plan.seq_len});
  auto sharded = runtime::ShardedModel::create(*std::move(built), plan.sharding, mesh, *self.device).value();
  sharded->init_weights(7);
  auto optimizer = optim::make_optimizer({}, sharded->optimizer_slots());

  const mesh::Mesh& shape = mesh.mesh();
  const int64_t rows = plan.global_batch / shape.size(mesh::Axis::kBatch);
  const int64_t first = rows * shape.index(self.rank, mesh::Axis::kBatch);
  const int64_t micro = rows / plan.microbatches;
  RankOutcome outcome;
  for (int step = 0; step < plan.steps; ++step) {
    const comm::LedgerCounts before = self.ledger.counts();
    const int64_t tokens = nn::count_valid(rows_of_step(plan, step, 0, plan.global_batch).labels).item<int64_t>();
    at::Tensor loss = at::zeros({}, at::kDouble);
    sharded->forget_gradients();
    for (int i = 0; i < plan.microbatches; ++i) {
      const auto context = rows_of_step(plan, step, first + i * micro, first + (i + 1) * micro);
      loss += sharded->engine().train(
          context, [tokens] { return tokens; }, i + 1 == plan.microbatches);
    }
    sharded->engine().finish_step();
    outcome.step_traffic = comm::subtract(self.ledger.counts(), before);
    if (step == 0) {
      for (auto* placed : sharded->parameters()) {
        outcome.rows["gradient." + placed->parameter->fqn] = {placed->first_row, placed->grad.clone()};
      }
    }
    // Sums over ranks for the comparison; the ledger reading above excludes them.
    at::Tensor report = at::stack({loss, optim::sum_of_squares(sharded->gradients())});
    at::Tensor norm = report.clone();
    mesh.group(mesh::Axis::kWorld).all_reduce(report).wait();
    mesh.group(mesh::Axis::kFsdp).all_reduce(norm).wait();
    outcome.losses.push_back(report[0].item<double>() / static_cast<double>(tokens));
    outcome.norms.push_back(std::sqrt(norm[1].item<double>()));
    optimizer->step(1e-2);
  }
  for (auto* placed : sharded->parameters()) {
    outcome.rows["value." + placed->parameter->fqn] = {placed->first_row, placed->value.clone()};
  }
  return outcome;
}

inline std::vector<RankOutcome> train_world(const TrainingPlan& plan, const mesh::Degrees& degrees, int world) {
  std::vector<RankOutcome> outcomes(world);
  run_ranks(degrees, world, {mesh::Axis::kFsdp, mesh::Axis::kReplicate, mesh::Axis::kWorld},
            [&](ThreadRank& self) { outcomes[self.rank] = train_rank(plan, self); });
  return outcomes;
}

// Every rank's rows against the same rows of a one-rank run.
inline void expect_same_training(const RankOutcome& reference, const std::vector<RankOutcome>& world,
                                 double tolerance) {
  for (const RankOutcome& rank : world) {
    for (size_t step = 0; step < reference.losses.size(); ++step) {
      EXPECT_NEAR(rank.losses[step], reference.losses[step], tolerance) << "loss of step " << step + 1;
      EXPECT_NEAR(rank.norms[step], reference.norms[step], tolerance) << "norm of step " << step + 1;
    }
    ASSERT_EQ(rank.rows.size(), reference.rows.size());
    for (const auto& [key, piece] : rank.rows) {
      const auto& [first, value] = piece;
      if (value.numel() == 0) continue;
      const at::Tensor expected = reference.rows.at(key).second.slice(0, first, first + value.size(0));
      EXPECT_LE((value - expected).abs().max().item<double>(), tolerance) << key << " from row " << first;
    }
  }
}

// The same rank of two runs of one mesh, bit for bit.
inline void expect_same_bits(const RankOutcome& one, const RankOutcome& other) {
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.norms, other.norms);
  ASSERT_EQ(one.rows.size(), other.rows.size());
  for (const auto& [key, piece] : one.rows) EXPECT_TRUE(piece.second.equal(other.rows.at(key).second)) << key;
}

}  // namespace titan::testing
