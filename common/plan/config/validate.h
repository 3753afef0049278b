#pragma once

// Checks across keys that need no disk, cluster or device, and the values that follow from the number of ranks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/load.h"

namespace titan::config {

// Returns everything that is wrong with the configuration. With `origins`, each problem has the place where its key was
// set.
std::vector<Problem> check(const JobConfig& config, const std::map<std::string, Origin>& origins = {});

// Returns the problems of check() as InvalidArgument, one per line; OK without problems.
absl::Status validate(const JobConfig& config);
absl::Status validate(const LoadedConfig& loaded);

// Fills in what follows from other keys: data_parallel_shard_degree -1, and the mode of a job that only estimates its
// memory. global_batch_size stays -1, since a job that resumes keeps its checkpoint's batch unless the key is set.
// Requires a valid configuration.
void resolve(JobConfig& config);

// Returns the seed for a job that sets none. `id` must be unique to the job; the same id gives the same seed, 0 to 2^32
// - 1.
std::int64_t seed_of(std::string_view id);

// Returns the number of the job's processes: one per rank, or one for all ranks (comm.mode local_tensor, fake_backend).
int processes(const JobConfig& config);

// Return the number of data-parallel ranks (replicate * shard), the rows per step and the microbatches per step of a
// resolved configuration that starts from step 0. A resumed job without a configured batch keeps the checkpoint's.
int batch_degree(const JobConfig& config);
std::int64_t global_batch(const JobConfig& config);
std::int64_t accumulation_steps(const JobConfig& config);

// Returns the bytes of a microbatch's logits on a rank above which they are computed in parts; 0: never. The default is
// 64 MiB on CPUs and 2 GiB on GPUs, where computing in parts costs time (docs/benchmarks/training-gpu.md).
std::int64_t max_logit_bytes(const JobConfig& config);

}  // namespace titan::config
