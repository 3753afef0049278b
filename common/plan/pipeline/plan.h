#pragma once

// Plans a job's pipeline: its schedule, and the blocks of the model that each stage holds.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// The configuration keys that messages of this folder begin with.
inline constexpr char kScheduleKey[] = "parallelism.pipeline_parallel_schedule: ";
inline constexpr char kPartsKey[] = "parallelism.module_fqns_per_model_part: ";

// Names of the engine's blocks of each stage, in order: "tok_embeddings", "layers.3", "output" (final norm and head).
using Split = std::vector<std::vector<std::string>>;

// Deals layers evenly over the stages, as torchtitan does: the embedding counts as `first_less` layers of the first
// stage and norm with head as `last_less` of the last; what does not divide goes to the first stages, one each.
// Errors: InvalidArgument, message beginning with the configuration key, when a stage would be empty or the embedding
// or head alone would weigh more than a stage.
absl::StatusOr<Split> split_layers(int stages, std::int64_t n_layers, std::int64_t first_less, std::int64_t last_less);

// A split that the user wrote down, in torchtitan's module names ("norm" and "output" are one block here). Every module
// must occur once, parts in the model's order. Errors: InvalidArgument naming part and module.
absl::StatusOr<Split> split_by_names(const std::vector<std::vector<std::string>>& parts, std::int64_t n_layers);

// The configuration's keys of the same names (section parallelism unless said otherwise), and what they apply to.
struct PlanOptions {
  int pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  std::optional<std::string> csv;  // Text of pipeline_parallel_schedule_csv.
  bool csv_later = false;          // There is such a file, but it cannot be read here: only the rest is checked.
  std::optional<std::int64_t> pipeline_parallel_layers_per_stage;
  std::int64_t pipeline_parallel_first_stage_less_layers = 1;
  std::int64_t pipeline_parallel_last_stage_less_layers = 1;
  std::optional<std::vector<std::vector<std::string>>> module_fqns_per_model_part;
  std::int64_t pipeline_parallel_microbatch_size = 1;
  std::int64_t local_batch_size = 1;  // training.local_batch_size
  std::int64_t n_layers = 0;          // Of the model; 0: not known, and no split is made.
};

struct Plan {
  Schedule schedule;  // Without steps when csv_later.
  Split split;        // Blocks of each stage.
  std::vector<std::string> warnings;
};

// The schedule and the split of a job, proven to run (simulate()). Everything a user can get wrong about a pipeline is
// told here, when a job is submitted. A degree of 1 is one stage with one microbatch. Errors: InvalidArgument, message
// beginning with the configuration key.
absl::StatusOr<Plan> plan(const PlanOptions& options);

}  // namespace titan::pipeline
