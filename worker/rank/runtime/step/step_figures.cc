#include "worker/rank/runtime/step/step_figures.h"

#include "absl/strings/str_cat.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {
namespace {

// How evenly this step's tokens went to the experts; every token count goes to metrics.jsonl alone.
void add_expert_figures(const Built& built, StepMetrics& figures) {
  const std::vector<parallel::ExpertLoad> loads =
      built.balance->loads(built.spec.n_layers, built.spec.moe->num_experts);
  for (auto& figure : parallel::balance_figures(loads)) figures.extra.push_back(std::move(figure));
  for (const parallel::ExpertLoad& load : loads) {
    figures.lists.emplace_back(absl::StrCat("moe/", load.layer, "/tokens_per_expert"), load.tokens);
  }
}

// What each of several sources has given so far, and how much of packed rows is padding.
void add_source_figures(int64_t seq_len, data::Loader& loader, StepMetrics& figures) {
  for (const data::SourceProgress& source : loader.progress()) {
    const auto tokens = static_cast<double>(source.rows * seq_len);
    figures.extra.emplace_back(absl::StrCat("data/", source.name, "/tokens"), tokens);
    figures.extra.emplace_back(absl::StrCat("data/", source.name, "/epoch"), static_cast<double>(source.passes));
  }
  if (const std::optional<double> padding = loader.take_padding()) figures.extra.emplace_back("data/padding", *padding);
}

void add_logit_figures(const parallel::QkClip& qk_clip, StepMetrics& figures) {
  const parallel::QkClip::Figures logits = qk_clip.figures();
  figures.extra.emplace_back("qk_clip/largest_logit", logits.largest);
  figures.extra.emplace_back("qk_clip/clipped_heads", static_cast<double>(logits.clipped));
}

}  // namespace

StepMetrics step_figures(const config::JobConfig& config, const Built& built, data::Loader& loader,
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
  add_source_figures(config.training.seq_len, loader, figures);
  if (built.qk_clip) add_logit_figures(*built.qk_clip, figures);
  return figures;
}

}  // namespace titan::runtime
