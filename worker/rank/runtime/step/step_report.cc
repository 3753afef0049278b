#include "worker/rank/runtime/step/step_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {
namespace {

enum Field : int64_t { kLossSum, kTerms, kSquares, kCheckpoint, kStop, kUnusable };

// For a rank without terms, and for one whose loss is NaN, which the sums reveal.
constexpr double kNoLoss = -std::numeric_limits<double>::infinity();

optim::Gate judge(const at::Tensor& sums, double max_norm) {
  const at::Tensor norm = sums[kSquares].sqrt();
  // Neither is near the largest double, so their sum is finite if both are.
  const at::Tensor finite = at::isfinite(sums[kLossSum].div(sums[kTerms].clamp_min(1)).add_(norm));
  const at::Tensor skip = finite.logical_not().logical_or(sums[kTerms].eq(0));  // No label: nothing to learn.
  return {.divisor = optim::clip_divisor(norm, max_norm), .skip = skip.to(at::kFloat)};
}

}  // namespace

Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm) {
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const double fields[kReportSums + 1] = {
      0, mine.loss_terms, 0, mine.checkpoint ? 1.0 : 0.0, mine.stop ? 1.0 : 0.0, mine.unusable, kNoLoss};
  at::Tensor known = at::empty({kReportSums + 1}, at::kDouble);
  std::copy(fields, fields + kReportSums + 1, known.mutable_data_ptr<double>());
  at::Tensor all = device::copy_async(known, device);
  if (mine.loss_sum.defined()) {
    all[kLossSum].copy_(mine.loss_sum);
    const at::Tensor mean = mine.loss_sum.to(at::kDouble).div(mine.loss_terms);
    if (mine.loss_terms > 0) all[kReportSums].copy_(mean.nan_to_num(kNoLoss, -kNoLoss, kNoLoss));
  }
  if (mine.sum_of_squares.defined()) all[kSquares].copy_(mine.sum_of_squares);
  const at::Tensor sums = all.narrow(0, 0, kReportSums);
  comm::Pending adding = world.all_reduce(sums);
  world.all_reduce(all.narrow(0, kReportSums, 1), c10d::ReduceOp::MAX).wait();
  adding.wait();
  return {StepReports(all), judge(sums, max_norm)};
}

StepSummary StepReports::summary() {
  const device::AllowHostWaitGuard wait;
  const auto all = reports_.wait().accessor<double, 1>();
  StepSummary summary;
  const double terms = all[kTerms];
  summary.avg_loss = all[kLossSum] / std::max(terms, 1.0);  // 0 for a step without labels.
  // A NaN takes precedence over another rank's finite loss.
  const bool has_largest = terms > 0 && !std::isnan(all[kLossSum]);
  summary.max_loss = has_largest ? all[kReportSums] : summary.avg_loss;
  summary.grad_norm = std::sqrt(all[kSquares]);
  summary.checkpoint = all[kCheckpoint] > 0;
  summary.stop = all[kStop] > 0;
  summary.unusable = static_cast<int64_t>(all[kUnusable]);
  return summary;
}

namespace {

// Adds how evenly this step's tokens were routed to the experts. The individual token counts only go to metrics.jsonl.
void add_expert_figures(const Built& built, StepMetrics& figures) {
  const std::vector<parallel::ExpertLoad> loads =
      built.balance->loads(built.spec.n_layers, built.spec.moe->num_experts);
  for (auto& figure : parallel::balance_figures(loads)) figures.extra.push_back(std::move(figure));
  for (const parallel::ExpertLoad& load : loads) {
    figures.lists.emplace_back(absl::StrCat("moe/", load.layer, "/tokens_per_expert"), load.tokens);
  }
}

// Adds the progress of each of several sources, and the share of padding in packed rows.
void add_source_figures(int64_t units_of_row, data::BatchSource& loader, StepMetrics& figures) {
  for (const data::SourceProgress& source : loader.progress()) {
    const auto tokens = static_cast<double>(source.rows * units_of_row);
    figures.extra.emplace_back(absl::StrCat("data/", source.name, "/tokens"), tokens);
    figures.extra.emplace_back(absl::StrCat("data/", source.name, "/epoch"), static_cast<double>(source.passes));
  }
  if (const std::optional<double> padding = loader.take_padding()) figures.extra.emplace_back("data/padding", *padding);
}

// Adds what reading and decoding ahead of the step cost on this rank, and the unusable rows of all ranks.
void add_reading_figures(data::BatchSource& loader, StepMetrics& figures) {
  if (const std::optional<data::ReadingCost> cost = loader.take_reading_cost()) {
    figures.extra.emplace_back("data/rows_per_second", cost->rows_per_second);
    figures.extra.emplace_back("data/waited(%)", cost->waited_percent);
    figures.extra.emplace_back("data/busy_threads", cost->busy_threads);
    figures.extra.emplace_back("data/rows_ready", static_cast<double>(cost->rows_ready));
  }
  if (const std::optional<int64_t> unusable = loader.unusable())
    figures.extra.emplace_back("data/bad_samples", static_cast<double>(*unusable));
}

void add_logit_figures(const parallel::QkClip& qk_clip, StepMetrics& figures) {
  const parallel::QkClip::Figures logits = qk_clip.figures();
  figures.extra.emplace_back("qk_clip/largest_logit", logits.largest);
  figures.extra.emplace_back("qk_clip/clipped_heads", static_cast<double>(logits.clipped));
}

}  // namespace

StepMetrics step_figures(const config::JobConfig& config, const Built& built, data::BatchSource& loader,
                         const StepSummary& summary, const Progress& progress) {
  const double factor = built.schedule->factor(progress.schedule_step);
  StepMetrics figures;
  figures.global_avg_loss = summary.avg_loss;
  figures.global_max_loss = summary.max_loss;
  figures.grad_norm = summary.grad_norm;
  figures.n_tokens_seen = progress.tokens_seen;
  figures.lr = config.optimizer.lr * factor;
  figures.extra = learning_rates(built.rules, factor);
  if (built.balance) add_expert_figures(built, figures);
  add_source_figures(built.objective->units_of_training_row(config), loader, figures);
  add_reading_figures(loader, figures);
  if (built.qk_clip) add_logit_figures(*built.qk_clip, figures);
  return figures;
}

}  // namespace titan::runtime
