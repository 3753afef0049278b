#pragma once

// Checks across keys that need no disk, no cluster and no device, and the values that follow from the number of ranks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/load.h"

namespace titan::config {

// Everything that is wrong with the configuration, each key with where it was set when `origins` are given.
std::vector<Problem> check(const JobConfig& config, const std::map<std::string, Origin>& origins = {});

// check() as InvalidArgument with one line per problem.
absl::Status validate(const JobConfig& config);
absl::Status validate(const Loaded& loaded);

// Fills what follows from the other keys: data_parallel_shard_degree -1, and the mode of a job that only estimates its
// memory. global_batch_size stays -1: a job that resumes keeps its checkpoint's batch unless the key is set. Call on a
// valid configuration.
void resolve(JobConfig& config);

// A seed for a job that sets none, from text that no two jobs share: the same text gives the same seed, 0 to 2^32 - 1.
std::int64_t seed_of(std::string_view id);

// Processes that the job's ranks are: one for each rank, or one for all (comm.mode local_tensor, fake_backend).
int processes(const JobConfig& config);

// Data-parallel ranks (replicate * shard), rows and microbatches per step of a resolved configuration that starts from
// step 0. A resumed job whose batch is not set keeps the checkpoint's.
int batch_degree(const JobConfig& config);
std::int64_t global_batch(const JobConfig& config);
std::int64_t accumulation_steps(const JobConfig& config);

// Bytes of a microbatch's logits on a rank beyond which they are computed in parts; 0: never. By itself 64 MiB on CPUs,
// 2 GiB on GPUs: there the time of parts shows (docs/benchmarks-gpu.md).
std::int64_t most_logit_bytes(const JobConfig& config);

}  // namespace titan::config
