#pragma once

#include <atomic>

#include "common/rank_protocol/launch.h"
#include "worker/rank/runtime/options.h"

namespace titan::runtime {

// comm.mode = "local_tensor": trains all ranks of the job's mesh as threads of this process, each with the same outputs
// as a process. Returns once all have ended, or some time after one has failed; the process must then exit without
// destructors. The exit code is that of the rank that caused the failure.
rank_protocol::ExitCode run_local_ranks(const RankJob& job, const std::atomic<bool>* stop_signal, double before_main);

}  // namespace titan::runtime
