#pragma once

// A job's pipeline: which rank does what when, and which blocks each stage holds.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/pipeline/plan.h"

namespace titan::config {

// What the configuration says about a pipeline over a model of `n_layers` (0: not known), without the text of
// pipeline_parallel_schedule_csv.
pipeline::PlanOptions pipeline_options(const JobConfig& config, std::int64_t n_layers);

// The text of a schedule's file. Errors: those of opening it; InvalidArgument when it is no file, or too large for one.
absl::StatusOr<std::string> read_schedule_file(const std::string& path);

// The schedule and the split that the ranks run; reads pipeline_parallel_schedule_csv. Also for one rank: one stage.
// Errors: InvalidArgument, message beginning with the key; those of opening the file.
absl::StatusOr<pipeline::Plan> pipeline_plan(const JobConfig& config, std::int64_t n_layers);

// What runs but not well, such as fewer microbatches than stages; reads no file.
std::vector<std::string> pipeline_warnings(const JobConfig& config);

}  // namespace titan::config
