#include "common/plan/pipeline/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/plan/pipeline/csv.h"
#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

constexpr char kEmbedding[] = "tok_embeddings", kHead[] = "output", kNorm[] = "norm";

bool has_decoder(const ModelBlocks& blocks) {
  const std::vector<std::string>& names = blocks.names();
  return blocks.known() && names[blocks.entry() - 1] == kEmbedding && names.back() == kHead;
}

// Lists few names, or the first and the last ones of many.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8, kEnds = 3;
  if (names.size() <= kMost) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kEnds, ", "), " to ",
                      absl::StrJoin(names.end() - kEnds, names.end(), ", "));
}

absl::Status check_weight(const char* key, std::int64_t less, const char* what, std::int64_t per_stage) {
  if (less <= per_stage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": the ", what, " counts as ", counted(less, "layer"),
                                                 ", but a stage has only ", per_stage, "; use at most ", per_stage,
                                                 " or fewer stages"));
}

}  // namespace

ModelBlocks::ModelBlocks(std::int64_t n_layers) {
  if (n_layers == 0) return;
  names_.push_back(kEmbedding);
  for (std::int64_t i = 0; i < n_layers; ++i) names_.push_back(absl::StrCat("layers.", i));
  names_.push_back(kHead);
}

ModelBlocks::ModelBlocks(std::vector<std::string> names, std::size_t entry) : names_(std::move(names)), entry_(entry) {}

std::vector<std::string> ModelBlocks::modules() const {
  std::vector<std::string> all = names_;
  if (has_decoder(*this)) all.insert(all.end() - 1, kNorm);
  return all;
}

absl::StatusOr<Split> split_layers(int stages, const ModelBlocks& blocks, std::int64_t first_less,
                                   std::int64_t last_less) {
  if (stages < 1) return absl::InvalidArgumentError("parallelism.pipeline_parallel_degree: needs at least one stage");
  if (stages == 1) first_less = last_less = 0;  // Nothing to balance.
  const std::int64_t effective = blocks.layers() + first_less + last_less;
  const std::int64_t per_stage = effective / stages;
  if (per_stage == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_parallel_degree: ", counted(stages, "stage"), " for ", counted(effective, "layer"),
        " (embedding and output count); use fewer stages, at most ", effective));
  }
  if (absl::Status bad =
          check_weight("parallelism.pipeline_parallel_first_stage_less_layers", first_less, "embedding", per_stage);
      !bad.ok()) {
    return bad;
  }
  if (absl::Status bad =
          check_weight("parallelism.pipeline_parallel_last_stage_less_layers", last_less, "output", per_stage);
      !bad.ok()) {
    return bad;
  }
  Split split(stages);
  auto next = blocks.names().begin();
  for (int stage = 0; stage < stages; ++stage) {
    std::int64_t layers = per_stage + (stage < effective % stages ? 1 : 0);
    if (stage == 0) {
      for (std::size_t i = 0; i < blocks.entry(); ++i) split[stage].push_back(*next++);
      layers -= first_less;
    }
    if (stage == stages - 1) layers -= last_less;
    for (std::int64_t i = 0; i < layers; ++i) split[stage].push_back(*next++);
    if (stage == stages - 1) split[stage].push_back(*next++);
  }
  return split;
}

absl::StatusOr<Split> split_by_names(const std::vector<std::vector<std::string>>& parts, const ModelBlocks& blocks) {
  const std::vector<std::string> modules = blocks.modules();
  std::map<std::string, std::size_t> part_of;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "part ", part, " is empty"));
    for (const std::string& name : parts[part]) {
      if (std::find(modules.begin(), modules.end(), name) == modules.end()) {
        return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "part ", part, " names \"", name,
                                                       "\", which the model does not have; its modules are ",
                                                       listed(modules)));
      }
      if (const auto [seen, fresh] = part_of.emplace(name, part); !fresh) {
        return absl::InvalidArgumentError(
            absl::StrCat(kPartsKey, name, " is in part ", seen->second, " and again in part ", part));
      }
    }
  }
  Split split(parts.size());
  std::size_t last = 0, entry_left = blocks.entry() > 1 ? blocks.entry() : 0;
  const std::vector<std::string> entry(modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(entry_left));
  std::string before;
  for (const std::string& name : modules) {
    const auto found = part_of.find(name);
    if (found == part_of.end()) return absl::InvalidArgumentError(absl::StrCat(kPartsKey, name, " is in no part"));
    if (found->second < last) {
      return absl::InvalidArgumentError(absl::StrCat(kPartsKey, name, " is in part ", found->second, ", before ",
                                                     before, " in part ", last, "; parts follow the model's order"));
    }
    if (name == kHead && before == kNorm && found->second != last)
      return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "norm is in part ", last, " and output in part ",
                                                     found->second, "; they must be in the same part"));
    if (entry_left > 0 && found->second != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(kPartsKey, name, " is in part ", found->second, ", but ", listed(entry),
                       " must all be in part 0: only after them do activations have one shape"));
    }
    if (entry_left > 0) --entry_left;
    last = found->second;
    before = name;
    if (name != kNorm) split[last].push_back(name);
  }
  return split;
}

namespace {

constexpr char kCsvKey[] = "parallelism.pipeline_parallel_schedule_csv: ";
constexpr char kLayersKey[] = "parallelism.pipeline_parallel_layers_per_stage: ";

bool reads_csv(const PlanOptions& options) { return options.csv.has_value() || options.csv_later; }

// Whether `name` is one of torch's class names for a schedule that only a file defines.
bool needs_csv(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return lower == "pipelineschedulesingle" || lower == "pipelineschedulemulti" || lower == "_pipelinescheduleruntime";
}

std::string divisors_text(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= number && divisors.size() < 12; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return absl::StrJoin(divisors, ", ");
}

absl::StatusOr<int> microbatches_of(const PlanOptions& options) {
  const std::int64_t size = options.pipeline_parallel_microbatch_size;
  if (size < 1 || options.local_batch_size % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_parallel_microbatch_size: ", size, " does not divide training.local_batch_size ",
        options.local_batch_size, "; possible: ", divisors_text(options.local_batch_size)));
  }
  return static_cast<int>(options.local_batch_size / size);
}

// Returns the number of stages that layers_per_stage gives; 0 when it is not set or the model is not known.
absl::StatusOr<int> stages_of_layers(const PlanOptions& options) {
  if (!options.pipeline_parallel_layers_per_stage.has_value() || !options.blocks.known()) return 0;
  const std::int64_t per_stage = *options.pipeline_parallel_layers_per_stage;
  const std::int64_t effective = options.blocks.layers() + options.pipeline_parallel_first_stage_less_layers +
                                 options.pipeline_parallel_last_stage_less_layers;
  const std::int64_t ranks = options.pipeline_parallel_degree;
  if (per_stage < 1) return absl::InvalidArgumentError(absl::StrCat(kLayersKey, per_stage, " must be at least 1"));
  const std::int64_t stages = (effective + per_stage - 1) / per_stage;
  if (stages % ranks != 0) {
    std::vector<std::int64_t> fitting;
    for (std::int64_t l = 1; l <= effective; ++l) {
      if (((effective + l - 1) / l) % ranks == 0) fitting.push_back(l);
    }
    return absl::InvalidArgumentError(
        absl::StrCat(kLayersKey, per_stage, " gives ", counted(stages, "stage"), " for ", counted(effective, "layer"),
                     " (embedding and output count), which pipeline_parallel_degree ", ranks, " does not divide",
                     fitting.empty() ? "" : "; possible: ", absl::StrJoin(fitting, ", ")));
  }
  return static_cast<int>(stages);
}

// Returns the number of stages that the explicit parts or layers_per_stage give; 0: the schedule's default.
absl::StatusOr<int> wanted_stages(const PlanOptions& options) {
  if (!options.module_fqns_per_model_part.has_value()) return stages_of_layers(options);
  const int parts = static_cast<int>(options.module_fqns_per_model_part->size());
  if (parts == 0 || parts % options.pipeline_parallel_degree != 0) {
    return absl::InvalidArgumentError(absl::StrCat(kPartsKey, counted(parts, "part"), parts == 1 ? " is" : " are",
                                                   " not a multiple of pipeline_parallel_degree ",
                                                   options.pipeline_parallel_degree));
  }
  return parts;
}

absl::StatusOr<Schedule> schedule_from_csv(const PlanOptions& options, int stages, int microbatches) {
  if (!options.csv.has_value()) {  // The file cannot be read here, so only the shape is known.
    return Schedule{.name = "CSV",
                    .ranks = options.pipeline_parallel_degree,
                    .stages = stages,
                    .microbatches = microbatches,
                    .steps = {}};
  }
  absl::StatusOr<Schedule> schedule = parse_csv(*options.csv);
  const auto wrong = [](const auto&... what) { return absl::InvalidArgumentError(absl::StrCat(kCsvKey, what...)); };
  if (!schedule.ok()) return wrong(std::string(schedule.status().message()));
  if (schedule->ranks != options.pipeline_parallel_degree)
    return wrong("has rows for ", counted(schedule->ranks, "rank"), ", but pipeline_parallel_degree is ",
                 options.pipeline_parallel_degree);
  if (schedule->microbatches != microbatches)
    return wrong("is for ", counted(schedule->microbatches, "microbatch", "microbatches"),
                 ", but training.local_batch_size ", options.local_batch_size, " makes ", microbatches,
                 " of pipeline_parallel_microbatch_size ", options.pipeline_parallel_microbatch_size);
  if (stages > 0 && schedule->stages != stages)
    return wrong("is for ", counted(schedule->stages, "stage"), ", but the other keys make ", stages);
  return schedule;
}

absl::StatusOr<Schedule> make_schedule(const PlanOptions& options, int stages, int microbatches) {
  if (reads_csv(options)) return schedule_from_csv(options, stages, microbatches);
  if (needs_csv(options.pipeline_parallel_schedule)) {
    return absl::InvalidArgumentError(absl::StrCat(kScheduleKey, options.pipeline_parallel_schedule,
                                                   " does not define an order; set "
                                                   "parallelism.pipeline_parallel_schedule_csv, or name a schedule"));
  }
  const absl::StatusOr<ScheduleKind> kind = find_schedule(options.pipeline_parallel_schedule);
  if (!kind.ok()) return kind.status();
  const int per_rank = stages > 0 ? stages / options.pipeline_parallel_degree : kind->default_stages_per_rank;
  absl::StatusOr<Schedule> schedule = generate(kind->name, options.pipeline_parallel_degree, per_rank, microbatches);
  if (schedule.ok() || !options.pipeline_parallel_layers_per_stage.has_value() || stages == 0) return schedule;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(schedule.status().message()), " (pipeline_parallel_layers_per_stage ",
                   *options.pipeline_parallel_layers_per_stage, " makes ", counted(stages, "stage"), ")"));
}

// Returns the plan of one rank that has the whole model and computes its batch as one microbatch, regardless of the
// other keys.
absl::StatusOr<PipelinePlan> without_pipeline(const PlanOptions& options) {
  PipelinePlan plan;
  absl::StatusOr<Schedule> schedule = generate("1F1B", 1, 1, 1);
  if (!schedule.ok()) return schedule.status();
  plan.schedule = *std::move(schedule);
  if (!options.blocks.known()) return plan;
  absl::StatusOr<Split> split = split_layers(1, options.blocks, 0, 0);
  if (!split.ok()) return split.status();
  plan.split = *std::move(split);
  return plan;
}

}  // namespace

absl::StatusOr<PipelinePlan> plan(const PlanOptions& options) {
  if (options.pipeline_parallel_degree == 1) return without_pipeline(options);
  const absl::StatusOr<int> microbatches = microbatches_of(options);
  if (!microbatches.ok()) return microbatches.status();
  const absl::StatusOr<int> stages = wanted_stages(options);
  if (!stages.ok()) return stages.status();
  absl::StatusOr<Schedule> schedule = make_schedule(options, *stages, *microbatches);
  if (!schedule.ok()) return schedule.status();
  PipelinePlan plan;
  plan.schedule = *std::move(schedule);
  if (!plan.schedule.steps.empty()) {
    const absl::StatusOr<Simulation> simulation = simulate(plan.schedule);
    if (!simulation.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(reads_csv(options) ? kCsvKey : kScheduleKey, std::string(simulation.status().message())));
    }
    if (plan.schedule.microbatches < plan.schedule.stages) {
      plan.warnings.push_back(absl::StrCat(
          "training.local_batch_size: ", counted(plan.schedule.microbatches, "microbatch", "microbatches"), " for ",
          plan.schedule.stages, " pipeline stages ", plan.schedule.microbatches == 1 ? "leaves" : "leave",
          " the ranks idle for ", std::lround(100 * simulation->bubble), " % of a step; use at least ",
          plan.schedule.stages * options.pipeline_parallel_microbatch_size));
    }
  }
  if (!options.blocks.known() || plan.schedule.stages == 0) return plan;
  absl::StatusOr<Split> split =
      options.module_fqns_per_model_part.has_value()
          ? split_by_names(*options.module_fqns_per_model_part, options.blocks)
          : split_layers(plan.schedule.stages, options.blocks, options.pipeline_parallel_first_stage_less_layers,
                         options.pipeline_parallel_last_stage_less_layers);
  if (!split.ok()) return split.status();
  plan.split = *std::move(split);
  return plan;
}

}  // namespace titan::pipeline
