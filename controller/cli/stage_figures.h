#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::cli {

// What a configuration says about the stages of its pipeline, by stage. Estimates: no rank is asked.
struct StageFigures {
  std::vector<std::int64_t> bytes;  // Of one microbatch's activations on one rank.
  std::vector<double> scale;        // FLOPs, as a multiple of the mean stage's.
  double recomputed = 0;            // Share of the layers' forward pass that the backward pass runs again, about.
  std::string explanation;          // What the bytes are.
};

// `plan`: config::pipeline_plan() of both, with its split.
StageFigures stage_figures(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan);

}  // namespace titan::cli
