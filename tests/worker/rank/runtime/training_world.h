#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/plan.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/qk_clip.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/engine/sharded_model.h"

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
  model::ParallelOptions parallel;  // build_rank() fills in its mesh.
  int64_t global_batch = 4;
  int64_t seq_len = 16;
  std::optional<int64_t> document_end = std::nullopt;  // Ends a document; tokens attend inside theirs.
  int64_t max_logit_bytes = 0;                         // 0: all at once.
  int microbatches = 1;                                // Gradient accumulation: runs per rank and step.
  int steps = 3;
  // For a pipeline: the order of work, stages per rank (0: the schedule's own number), and microbatches of each run.
  std::string schedule = "1F1B";
  int stages_per_rank = 0;
  int pipeline_microbatches = 2;
  std::optional<pipeline::Schedule> custom_schedule;  // Instead of a generated one.
  bool overlap_pairs = false;
  // If empty, AdamW trains all parameters.
  std::function<std::unique_ptr<optim::Optimizer>(runtime::ShardedModel&, ThreadRank&)> make_optimizer;
  std::function<void(model::Model&)> convert;  // Changes the model after the split; may be empty.
  std::function<void(runtime::ShardingOptions&, ThreadRank&)> of_rank;  // Rank-specific options; may be empty.
  double qk_clip = 0;                                                   // optimizer.qk_clip
};

// A rank's part of one tensor, and its offset in the whole. `value` has as many dims as the whole, and this rank's
// sizes.
struct Piece {
  std::vector<int64_t> offset;
  at::Tensor value;
};

// Results of one rank. `pieces` has its parts of all that was trained, by "gradient.<FQN>" (first step) and
// "value.<FQN>" (at the end).
struct RankOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> evaluated;  // Loss of the first batch after each step, from forward passes alone.
  std::map<std::string, Piece> pieces;
  comm::LedgerCounts step_traffic;                // Traffic of the last step.
  std::vector<parallel::QkClip::Figures> logits;  // After each step, with plan.qk_clip.
};

// Returns rows [begin, end) of the global batch of one step, the same on every mesh. Tokens and labels are [end -
// begin, seq_len]; some labels are ignored.
inline nn::MicrobatchContext rows_of_step(const TrainingPlan& plan, int step, int64_t begin, int64_t end) {
  at::Tensor tokens = at::arange(plan.global_batch * (plan.seq_len + 1), at::kLong).view({plan.global_batch, -1});
  tokens = (tokens * 7919 + 31 * step + tokens.div(13, "floor")).remainder(plan.spec.vocab_size).slice(0, begin, end);
  nn::MicrobatchContext context;
  context.tokens = tokens.slice(1, 0, plan.seq_len).clone();
  context.labels = tokens.slice(1, 1).clone();
  context.labels.masked_fill_(context.labels.eq(3), nn::kIgnoreIndex);
  if (plan.document_end) context.documents = nn::number_documents(context.tokens, *plan.document_end);
  return context;
}

inline pipeline::Schedule schedule_of(const TrainingPlan& plan, int ranks) {
  if (ranks == 1) return pipeline::generate("1F1B", 1, 1, 1).value();
  if (plan.custom_schedule) return *plan.custom_schedule;
  const pipeline::ScheduleKind kind = pipeline::find_schedule(plan.schedule).value();
  const int stages = plan.stages_per_rank > 0 ? plan.stages_per_rank : kind.default_stages_per_rank;
  return pipeline::generate(plan.schedule, ranks, stages, plan.pipeline_microbatches).value();
}

// Makes the matrices of the layers from `first` on use such a recipe, including those of their experts. Routers are not
// converted.
inline void convert_layers(model::Model& model, const nn::LowPrecisionOptions& options, size_t first = 0) {
  model.recipes.push_back(nn::make_low_precision_recipe(options));
  for (const auto& block : model.blocks) {
    if (!absl::StartsWith(block->name(), "layers.")) continue;
    if (first > 0) {
      --first;
      continue;
    }
    for (nn::Parameter& parameter : block->parameters()) {
      const bool is_router = absl::StrContains(parameter.fqn, "router");
      if (parameter.shape.size() >= 2 && !is_router) parameter.products = model.recipes.back().get();
    }
  }
}

// One rank's model and its executor, built as the trainer builds them.
struct RankModel {
  pipeline::Schedule schedule;
  std::unique_ptr<runtime::ShardedModel> sharded;
  std::unique_ptr<runtime::Executor> executor;
};

inline RankModel build_rank(const TrainingPlan& plan, ThreadRank& self) {
  const comm::DeviceMesh& mesh = *self.mesh;
  const mesh::Mesh& shape = mesh.mesh();
  RankModel built;
  built.schedule = schedule_of(plan, shape.size(mesh::Axis::kPipeline));
  model::Model model =
      model::build(plan.spec, {.seq_len = plan.seq_len, .max_logit_bytes = plan.max_logit_bytes}).value();
  if (model.parallelize) {
    model::ParallelOptions parallel = plan.parallel;
    parallel.mesh = &mesh;
    const absl::Status done = model.parallelize(model, parallel);
    if (!done.ok()) throw std::runtime_error(std::string(done.message()));
  }
  if (plan.convert) plan.convert(model);
  runtime::ShardingOptions sharding = plan.sharding;
  if (plan.of_rank) plan.of_rank(sharding, self);
  if (built.schedule.ranks > 1) {
    const pipeline::Split split = pipeline::split_layers(built.schedule.stages, plan.spec.n_layers, 0, 0).value();
    sharding.pipeline = runtime::share_of(built.schedule, split, shape.index(self.rank, mesh::Axis::kPipeline));
    sharding.pipeline->dim = plan.spec.dim;
    if (plan.parallel.sequence_parallel) sharding.pipeline->sequence_ranks = shape.size(mesh::Axis::kTensor);
  }
  built.sharded = runtime::ShardedModel::create(std::move(model), sharding, mesh, *self.device).value();
  built.executor = std::make_unique<runtime::Executor>(built.sharded->stages(), &mesh.group(mesh::Axis::kPipeline));
  if (plan.overlap_pairs) built.executor->overlap_pairs();
  return built;
}

// Returns this rank's microbatches of one run: `rows` rows, from `first` on, for the whole run.
inline std::vector<nn::MicrobatchContext> microbatches_of_run(const TrainingPlan& plan, const comm::DeviceMesh& mesh,
                                                              int step, int64_t first, int64_t rows, int count) {
  std::vector<nn::MicrobatchContext> microbatches;
  for (int i = 0; i < count; ++i) {
    nn::MicrobatchContext whole = rows_of_step(plan, step, first + rows / count * i, first + rows / count * (i + 1));
    microbatches.push_back(parallel::shard_microbatch(whole, {.group = &mesh.group(mesh::Axis::kContext)}));
  }
  return microbatches;
}

// Returns the first row of this rank in a step, and its number of rows.
inline std::pair<int64_t, int64_t> rows_of_rank(const TrainingPlan& plan, const comm::DeviceMesh& mesh) {
  const mesh::Mesh& shape = mesh.mesh();
  const int64_t rows = plan.global_batch / shape.size(mesh::Axis::kBatch);
  return {rows * shape.index(mesh.rank(), mesh::Axis::kBatch), rows};
}

// Runs forward and backward of one step. Of the ranks that have the same tokens, one returns the sum of losses, [], and
// the others zero.
inline at::Tensor forward_backward(const TrainingPlan& plan, const comm::DeviceMesh& mesh, RankModel& model, int step) {
  const int64_t tokens = nn::count_valid(rows_of_step(plan, step, 0, plan.global_batch).labels).item<int64_t>();
  const auto [first, rows] = rows_of_rank(plan, mesh);
  const int64_t run = rows / plan.microbatches;
  at::Tensor loss = at::zeros({}, at::kDouble);
  model.sharded->reset_gradients();
  for (int i = 0; i < plan.microbatches; ++i) {
    const auto microbatches = microbatches_of_run(plan, mesh, step, first + run * i, run, model.schedule.microbatches);
    loss += model.executor->run(
        model.schedule, microbatches, [tokens = tokens] { return at::scalar_tensor(tokens, at::kLong); },
        i + 1 == plan.microbatches);
  }
  model.sharded->finish_step();
  return mesh.mesh().coordinate(mesh.rank()).tp == 0 ? loss : at::zeros_like(loss);
}

// Returns the loss of the first step's rows, on every rank.
inline double evaluate(const TrainingPlan& plan, const comm::DeviceMesh& mesh, RankModel& model) {
  const auto [first, rows] = rows_of_rank(plan, mesh);
  const int count = model.schedule.ranks == 1 ? 1 : model.schedule.microbatches;
  at::Tensor loss = model.executor->run(pipeline::forward_only(model.schedule, count),
                                        microbatches_of_run(plan, mesh, 0, first, rows, count));
  model.sharded->release();
  if (mesh.mesh().coordinate(mesh.rank()).tp != 0) loss.zero_();
  mesh.group(mesh::Axis::kWorld).all_reduce(loss).wait();
  return loss.item<double>();
}

inline RankOutcome train_rank(const TrainingPlan& plan, ThreadRank& self) {
  const comm::DeviceMesh& mesh = *self.mesh;
  RankModel model = build_rank(plan, self);
  model.sharded->init_weights(7);
  auto optimizer = plan.make_optimizer ? plan.make_optimizer(*model.sharded, self)
                                       : optim::make_optimizer({}, model.sharded->optimizer_slots());
  std::unique_ptr<parallel::QkClip> clip;
  if (plan.qk_clip > 0) {
    clip = parallel::QkClip::create(model.sharded->blocks(), model.sharded->parameters(), plan.qk_clip, mesh,
                                    model.sharded->device())
               .value();
  }
  RankOutcome outcome;
  for (int step = 0; step < plan.steps; ++step) {
    const comm::LedgerCounts before = self.ledger.counts();
    const int64_t tokens = nn::count_valid(rows_of_step(plan, step, 0, plan.global_batch).labels).item<int64_t>();
    const at::Tensor loss = forward_backward(plan, mesh, model, step);
    outcome.step_traffic = comm::subtract(self.ledger.counts(), before);
    if (step == 0) {
      for (auto* placed : model.sharded->trained()) {
        outcome.pieces["gradient." + placed->parameter->fqn] = {placed->global_offset(), placed->grad.clone()};
      }
    }
    // Sums over ranks for the comparison. The ledger was read before and excludes these sums.
    at::Tensor report = at::stack({loss, optim::sum_of_squares(model.sharded->gradients())});
    mesh.group(mesh::Axis::kWorld).all_reduce(report).wait();
    outcome.losses.push_back(report[0].item<double>() / static_cast<double>(tokens));
    outcome.norms.push_back(std::sqrt(report[1].item<double>()));
    optimizer->step(1e-2);
    if (clip) {
      clip->finish_step();
      outcome.logits.push_back(clip->figures());
    }
    outcome.evaluated.push_back(evaluate(plan, mesh, model));
  }
  for (auto* placed : model.sharded->trained()) {
    outcome.pieces["value." + placed->parameter->fqn] = {placed->global_offset(), placed->value.clone()};
  }
  return outcome;
}

inline std::vector<RankOutcome> train_world(const TrainingPlan& plan, const mesh::Degrees& degrees, int world,
                                            Via via = Via::kMemory) {
  std::vector<RankOutcome> outcomes(world);
  run_ranks(
      degrees, world, every_axis(), [&](ThreadRank& self) { outcomes[self.rank] = train_rank(plan, self); }, via);
  return outcomes;
}

inline constexpr double kExact = 1e-10;  // fp64: no split of the work may change the result.

// Compares every rank's parts with the same parts of a one-rank run. Together the ranks must have all parameters.
inline void expect_same_training(const RankOutcome& reference, const std::vector<RankOutcome>& world,
                                 double tolerance) {
  std::set<std::string> seen;
  for (const RankOutcome& rank : world) {
    for (size_t step = 0; step < reference.losses.size(); ++step) {
      EXPECT_NEAR(rank.losses[step], reference.losses[step], tolerance) << "loss of step " << step + 1;
      EXPECT_NEAR(rank.norms[step], reference.norms[step], tolerance) << "norm of step " << step + 1;
      EXPECT_NEAR(rank.evaluated[step], reference.evaluated[step], tolerance * 1e3) << "evaluation " << step + 1;
    }
    for (const auto& [key, piece] : rank.pieces) {
      seen.insert(key);
      if (piece.value.numel() == 0) continue;
      at::Tensor expected = reference.pieces.at(key).value;
      for (size_t dim = 0; dim < piece.offset.size(); ++dim) {
        const auto d = static_cast<int64_t>(dim);
        expected = expected.narrow(d, piece.offset[dim], piece.value.size(d));
      }
      EXPECT_LE((piece.value - expected).abs().max().item<double>(), tolerance)
          << key << " from " << at::IntArrayRef(piece.offset);
    }
  }
  EXPECT_EQ(seen.size(), reference.pieces.size());
}

// Compares the same rank of two runs of one mesh, bit for bit.
inline void expect_same_bits(const RankOutcome& one, const RankOutcome& other) {
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.norms, other.norms);
  ASSERT_EQ(one.pieces.size(), other.pieces.size());
  for (const auto& [key, piece] : one.pieces) EXPECT_TRUE(piece.value.equal(other.pieces.at(key).value)) << key;
}

}  // namespace titan::testing
