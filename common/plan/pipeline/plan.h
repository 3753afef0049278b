#pragma once

// Plans a job's pipeline: its schedule, and the blocks of the model that each stage holds.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Configuration keys that begin the messages of this folder.
inline constexpr char kScheduleKey[] = "parallelism.pipeline_parallel_schedule: ";
inline constexpr char kPartsKey[] = "parallelism.module_fqns_per_model_part: ";

// Names of a model's blocks in order: what makes activations of the input, layers, and what makes the output of them.
class ModelBlocks {
 public:
  ModelBlocks() = default;  // Not known.
  // A decoder's: "tok_embeddings", "layers.0" and so on, "output" (final norm and head). 0 layers: not known.
  ModelBlocks(std::int64_t n_layers);  // NOLINT: a decoder is its number of layers here.
  // Any other model's, at least two. The first `entry` of them make activations of the input; they stay in one stage,
  // because what passes between them has other shapes.
  ModelBlocks(std::vector<std::string> names, std::size_t entry = 1);  // NOLINT: a list of names is the blocks.

  bool known() const { return !names_.empty(); }
  const std::vector<std::string>& names() const { return names_; }
  // Number of blocks at the beginning that make activations of the input.
  std::size_t entry() const { return entry_; }
  // Number of blocks between those and the last.
  std::int64_t layers() const { return known() ? static_cast<std::int64_t>(names_.size() - entry_) - 1 : 0; }
  // Names that a user's split lists: the blocks, and for a decoder torchtitan's "norm" before "output".
  std::vector<std::string> modules() const;

 private:
  std::vector<std::string> names_;
  std::size_t entry_ = 1;
};

// Names of the engine's blocks of each stage, in order.
using Split = std::vector<std::vector<std::string>>;

// Distributes layers evenly over the stages, as torchtitan does. The entry blocks weigh `first_less` layers of the
// first stage, the last one `last_less` layers of the last. A remainder goes to the first stages, one layer each.
// Errors: InvalidArgument, message beginning with the configuration key, when a stage would be empty or the embedding
// or head alone would weigh more than a stage.
absl::StatusOr<Split> split_layers(int stages, const ModelBlocks& blocks, std::int64_t first_less,
                                   std::int64_t last_less);

// Uses the user's split, in torchtitan's module names ("norm" and "output" are one block here). Every module must occur
// once, with parts in the model's order and all entry blocks in the first part. Errors: InvalidArgument naming part and
// module.
absl::StatusOr<Split> split_by_names(const std::vector<std::vector<std::string>>& parts, const ModelBlocks& blocks);

// Values of the configuration keys with the same names (section parallelism unless noted).
struct PlanOptions {
  int pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  std::optional<std::string> csv;  // Text of pipeline_parallel_schedule_csv.
  bool csv_later = false;          // There is a CSV file that cannot be read here; only the rest is checked.
  std::optional<std::int64_t> pipeline_parallel_layers_per_stage;
  std::int64_t pipeline_parallel_first_stage_less_layers = 1;
  std::int64_t pipeline_parallel_last_stage_less_layers = 1;
  std::optional<std::vector<std::vector<std::string>>> module_fqns_per_model_part;
  std::int64_t pipeline_parallel_microbatch_size = 1;
  std::int64_t local_batch_size = 1;  // training.local_batch_size
  ModelBlocks blocks = {};            // Blocks of the model; not known: no split is made.
};

struct PipelinePlan {
  Schedule schedule;  // Without steps when csv_later is set.
  Split split;        // Blocks of each stage.
  std::vector<std::string> warnings;
};

// Plans a job's schedule and split, and checks with simulate() that the schedule runs, so that every user error about
// the pipeline is reported at submit. A degree of 1 is one stage with one microbatch. Errors: InvalidArgument, message
// beginning with the configuration key.
absl::StatusOr<PipelinePlan> plan(const PlanOptions& options);

}  // namespace titan::pipeline
