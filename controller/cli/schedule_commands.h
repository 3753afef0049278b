#pragma once

// Carries out `titanctl schedule show`, with the memory and work of each stage where a configuration gives them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"
#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

// Figures of a pipeline's stages, by stage. They are estimates from the configuration: no rank is asked.
struct StageFigures {
  std::vector<std::int64_t> bytes;  // Activations of one microbatch on one rank.
  std::vector<double> scale;        // FLOPs, as a multiple of the mean stage's.
  double recomputed = 0;            // Approximate share of the layers' forward pass that the backward pass recomputes.
  std::string explanation;          // Explains the bytes.
};

// Estimates the figures of each stage. `plan`: result of config::pipeline_plan() for both, with its split.
StageFigures stage_figures(const config::JobConfig& config, const models::ModelSpec& spec,
                           const pipeline::PipelinePlan& plan);

// Flags of `titanctl schedule show`: a configuration, a file with a schedule, or a name with sizes.
struct ScheduleRequest {
  Source source;
  std::string csv;
  std::optional<std::string> name;  // Default: 1F1B.
  std::optional<int> ranks;         // Default: 4.
  std::optional<int> microbatches;  // Default: 8.
  std::optional<int> stages_per_rank;
  std::string costs;  // "F,I,W,transfer"; empty: 1,1,1,0.
  bool by_flops = false;
  bool pairs_overlap = false;
  std::string svg;           // File to write; empty: none.
  bool write_csv = false;    // Print the schedule as CSV instead of drawing it.
  std::optional<int> width;  // Columns of the drawing; 0: any number.
};

int show_schedule(const Globals& globals, const ScheduleRequest& request);

}  // namespace titan::cli
