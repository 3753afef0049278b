#pragma once

#include <cstdint>

#include "common/plan/config/job_config.h"

namespace titan::runtime {

// What the profiler does in one training step, as torch.profiler's schedule and torchtitan have it: of every
// profiling.profile_freq steps the last profiler_active are recorded, those before them warm the profiler up
// (profiler_warmup), and the rest runs undisturbed. Steps count from 1 over the job's life, so an attempt that resumes
// records the steps that an undisturbed one would.
struct TraceWork {
  bool warms_up = false;
  bool records = false;
  bool saves = false;  // After this step.
};
TraceWork trace_work(const config::Profiling& config, int64_t step);

}  // namespace titan::runtime
