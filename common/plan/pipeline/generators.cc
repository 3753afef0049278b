#include "common/plan/pipeline/generators.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/plan/pipeline/plan.h"
#include "common/plan/pipeline/rank_order.h"

namespace titan::pipeline {
namespace {

// Limits far above any job. They bound the controller's work for a submitted job: planning time grows with the number
// of passes and with the square of the ranks.
constexpr std::int64_t kMaxWork = std::int64_t{1} << 20, kMaxRanks = 1024;

// GPipe (arXiv 1811.06965) and its breadth-first form with several stages per rank (arXiv 2211.05953): all microbatches
// pass one stage, then the next.
std::vector<ScheduleStep> breadth_first(const Schedule& shape, int rank, bool newest_first) {
  std::vector<ScheduleStep> steps;
  const std::vector<int> own = shape.stages_of(rank);
  for (const int stage : own) {
    for (int m = 0; m < shape.microbatches; ++m) steps.push_back({{Action{stage, ComputationType::kForward, m}}});
  }
  for (auto stage = own.rbegin(); stage != own.rend(); ++stage) {
    for (int m = 0; m < shape.microbatches; ++m) {
      const int microbatch = newest_first ? shape.microbatches - 1 - m : m;
      steps.push_back({{Action{*stage, ComputationType::kBackward, microbatch}}});
    }
  }
  return with_reductions(std::move(steps));
}

// One forward, one backward (arXiv 2104.04473): each rank alternates after the passes that fill the pipeline. With
// several stages per rank, microbatches pass in rounds of as many as there are ranks.
std::vector<ScheduleStep> alternating(const Schedule& shape, int rank) {
  const InterleavedOrder order(shape, rank);
  const int per_hop = order.stages_per_rank() == 1 ? 1 : 2;
  const int ahead = order.ahead(per_hop);
  RankScheduleBuilder out;
  for (int i = 0; i < order.size() + ahead; ++i) {
    if (i < order.size()) out.forward(order.forward_stage(i));
    if (i >= ahead) out.backward(order.backward_stage(i - ahead));
  }
  return out.finish(shape.microbatches);
}

// ZB-H1 of arXiv 2401.10241 on interleaved stages. Input gradients are sent at once. Weight gradients, for which no
// rank waits, fill the bubble at the end. A rank holds at most as many microbatches as under 1F1B: rank r starts with r
// weight gradients outstanding and keeps that lag.
std::vector<ScheduleStep> alternating_split(const Schedule& shape, int rank) {
  const InterleavedOrder order(shape, rank);
  const int ahead = order.ahead(/*per_hop=*/1);
  RankScheduleBuilder out;
  for (int i = 0; i < order.size() + ahead; ++i) {
    if (i < order.size()) out.forward(order.forward_stage(i));
    if (i >= ahead) out.input_gradient(order.backward_stage(i - ahead));
    if (i >= ahead + rank) out.weight_gradient();
  }
  out.all_weight_gradients();
  return out.finish(shape.microbatches);
}

std::vector<ScheduleStep> rank_steps(const Schedule& shape, int rank) {
  if (shape.name == "GPipe") return breadth_first(shape, rank, /*newest_first=*/false);
  if (shape.name == "LoopedBFS") return breadth_first(shape, rank, /*newest_first=*/true);
  if (shape.name == "InterleavedZeroBubble") return alternating_split(shape, rank);
  if (shape.name == "ZBVZeroBubble") return zero_bubble_v(shape, rank);
  if (shape.name == "DualPipeV") return dual_pipe_v(shape, rank);
  return alternating(shape, rank);  // 1F1B, Interleaved1F1B
}

absl::Status check_shape(const ScheduleKind& kind, int ranks, int stages_per_rank, int microbatches) {
  const std::string shape = absl::StrCat(counted(ranks, "rank"), " with ", counted(stages_per_rank, "stage"),
                                         " each and ", counted(microbatches, "microbatch", "microbatches"));
  if (ranks < 1 || stages_per_rank < 1 || microbatches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.pipeline_parallel_degree: ", shape, ": each must be at least 1"));
  }
  if (ranks > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.pipeline_parallel_degree: ", counted(ranks, "rank"),
                                                   "; a pipeline has at most ", kMaxRanks));
  }
  if (std::int64_t{ranks} * stages_per_rank * microbatches > kMaxWork) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.pipeline_parallel_degree: ", shape, " make more than ", kMaxWork, " passes a step"));
  }
  const bool few = stages_per_rank < kind.min_stages_per_rank;
  const bool many = kind.max_stages_per_rank > 0 && stages_per_rank > kind.max_stages_per_rank;
  if (few || many) {
    const std::string takes = kind.max_stages_per_rank == kind.min_stages_per_rank
                                  ? absl::StrCat("exactly ", counted(kind.min_stages_per_rank, "stage"))
                                  : absl::StrCat(kind.min_stages_per_rank, " or more stages");
    return absl::InvalidArgumentError(
        absl::StrCat(kScheduleKey, kind.name, " takes ", takes, " per rank, not ", stages_per_rank,
                     stages_per_rank == 1 ? "; 1F1B and GPipe take 1"
                                          : "; Interleaved1F1B, LoopedBFS and InterleavedZeroBubble take 2 or more"));
  }
  if (kind.name == "DualPipeV" && microbatches < 2 * ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(kScheduleKey, "DualPipeV needs at least as many microbatches as stages (", 2 * ranks,
                     "), but has ", microbatches,
                     "; raise training.local_batch_size, lower parallelism.pipeline_parallel_microbatch_size, or use "
                     "ZBVZeroBubble"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<ScheduleKind>& schedule_kinds() {
  static const auto& table = *new std::vector<ScheduleKind>{
      {"GPipe", StagePlacement::kLoop, 1, 1, 1, false},
      {"1F1B", StagePlacement::kLoop, 1, 1, 1, false},
      {"Interleaved1F1B", StagePlacement::kLoop, 2, 2, 0, false},
      {"LoopedBFS", StagePlacement::kLoop, 2, 2, 0, false},
      {"InterleavedZeroBubble", StagePlacement::kLoop, 2, 2, 0, true},
      {"ZBVZeroBubble", StagePlacement::kV, 2, 2, 2, true},
      {"DualPipeV", StagePlacement::kV, 2, 2, 2, true},
  };
  return table;
}

absl::StatusOr<ScheduleKind> find_schedule(const std::string& name) {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (absl::AsciiStrToLower(kind.name) == absl::AsciiStrToLower(name)) return kind;
    names.push_back(kind.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kScheduleKey, "no schedule \"", name, "\"; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Schedule> generate(const std::string& name, int ranks, int stages_per_rank, int microbatches) {
  const absl::StatusOr<ScheduleKind> kind = find_schedule(name);
  if (!kind.ok()) return kind.status();
  if (absl::Status bad = check_shape(*kind, ranks, stages_per_rank, microbatches); !bad.ok()) return bad;
  Schedule schedule{.name = kind->name,
                    .ranks = ranks,
                    .stages = ranks * stages_per_rank,
                    .microbatches = microbatches,
                    .placement = kind->placement};
  for (int rank = 0; rank < ranks; ++rank) schedule.steps.push_back(rank_steps(schedule, rank));
  return schedule;
}

Schedule forward_only(const Schedule& like, int microbatches) {
  Schedule schedule{.name = like.name,
                    .ranks = like.ranks,
                    .stages = like.stages,
                    .microbatches = microbatches,
                    .placement = like.placement,
                    .forward_only = true};
  for (int rank = 0; rank < like.ranks; ++rank) {
    const InterleavedOrder order(schedule, rank);
    RankScheduleBuilder out;
    for (int i = 0; i < order.size(); ++i) out.forward(order.forward_stage(i));
    schedule.steps.push_back(out.finish(microbatches));
  }
  return schedule;
}

// With F, I and W of equal length, no rank waits once its first microbatch has arrived: enough weight gradients are
// left for the end. Generates at least the 2 * ranks - 1 microbatches that fill the pipeline; finish() drops those that
// do not exist.
std::vector<ScheduleStep> zero_bubble_v(const Schedule& shape, int rank) {
  const int ranks = shape.ranks;
  const int outer = rank;
  const int inner = 2 * ranks - 1 - rank;
  const int microbatches = std::max(2 * ranks - 1, shape.microbatches);
  RankScheduleBuilder out;
  const auto whole_backward = [&](int stage) {
    out.input_gradient(stage);
    out.weight_gradient(stage);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) out.forward(outer);  // Until the first microbatch comes back up.
  for (int i = 0; i < rank; ++i) {
    out.forward(inner);
    out.forward(outer);
  }
  for (int i = 0; i < ranks - rank; ++i) {  // The outer stage's first gradient has not arrived yet.
    out.forward(inner);
    whole_backward(inner);
  }
  while (out.forwards(inner) < out.forwards(outer) || out.forwards(outer) < microbatches) {
    if (out.forwards(outer) < microbatches) out.forward(outer);
    whole_backward(outer);
    out.forward(inner);
    whole_backward(inner);
  }
  for (int i = 0; i < rank; ++i) {  // Other ranks wait for these input gradients, so weight gradients come later.
    out.input_gradient(outer);
    out.input_gradient(inner);
  }
  for (int i = 0; i < ranks - rank; ++i) whole_backward(outer);
  out.all_weight_gradients(inner);
  out.all_weight_gradients(outer);
  return out.finish(shape.microbatches);
}

// In the middle a forward pass of one stage runs together with a backward pass of the other, so that one stage's token
// exchange between experts overlaps the other's matrix products.
std::vector<ScheduleStep> dual_pipe_v(const Schedule& shape, int rank) {
  const int ranks = shape.ranks;
  const int outer = rank;
  const int inner = 2 * ranks - 1 - rank;
  const int ranks_after = ranks - 1 - rank;  // Ranks further down the V.
  RankScheduleBuilder out;
  for (int i = 0; i < 2 * ranks_after; ++i) out.forward(outer);
  for (int i = 0; i <= rank; ++i) {
    out.forward(outer);
    out.forward(inner);
  }
  for (int i = 0; i < ranks_after; ++i) {
    out.input_gradient(inner);
    out.weight_gradient();
    out.forward(inner);
  }
  for (int i = 0; i < shape.microbatches - 2 * ranks + rank + 1; ++i) {
    if (i == 0 && ranks_after == 0) {  // Without a pair, the first forward reaches the rank's own inner stage sooner.
      out.forward(outer);
      out.backward(inner);
    } else {
      out.pair(outer, inner);
    }
    out.pair(inner, outer);
  }
  for (int i = 0; i < ranks_after; ++i) {
    out.backward(inner);
    out.pair(inner, outer);
  }
  // 2 (rank + 1) + ranks_after backward passes remain. From the middle of the first group on, only input gradients are
  // computed.
  bool split = false;
  const auto drain = [&](int stage) { split ? out.input_gradient(stage) : out.backward(stage); };
  const int middle = (rank + 1) / 2;
  for (int i = 0; i <= rank; ++i) {
    split = split || (i == middle && rank % 2 == 1);
    drain(inner);
    split = split || (i == middle && rank % 2 == 0);
    drain(outer);
  }
  for (int i = 0; i < ranks_after; ++i) {
    out.weight_gradient();
    drain(outer);
  }
  out.all_weight_gradients();
  return out.finish(shape.microbatches);
}

}  // namespace titan::pipeline
