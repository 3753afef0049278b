#include "worker/rank/runtime/profiling/trace_schedule.h"

namespace titan::runtime {

TraceWork trace_work(const config::Profiling& config, int64_t step) {
  if (!config.enable_profiling) return {};
  const int64_t place = (step - 1) % config.profile_freq;
  const int64_t first_recorded = config.profile_freq - config.profiler_active;
  return {.warms_up = place < first_recorded && place >= first_recorded - config.profiler_warmup,
          .records = place >= first_recorded,
          .saves = place + 1 == config.profile_freq};
}

}  // namespace titan::runtime
