#pragma once

// The configuration keys that messages of this folder begin with.

namespace titan::pipeline {

inline constexpr char kScheduleKey[] = "parallelism.pipeline_parallel_schedule: ";
inline constexpr char kPartsKey[] = "parallelism.module_fqns_per_model_part: ";

}  // namespace titan::pipeline
