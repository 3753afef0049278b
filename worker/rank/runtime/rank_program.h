#pragma once

// run_rank() is one rank's life, as a process or a thread: device, rendezvous with the other ranks, training, and the
// report of its failure.

#include <memory>

#include "worker/rank/comm/local_backend.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"
#include "worker/rank/runtime/step/trainer.h"

namespace titan::runtime {

// One rank, whether it is a process or a thread of one.
std::unique_ptr<RankContext> make_context(const RankJob& job, const std::atomic<bool>* stop_signal);

// From the first event to the last: device, rendezvous, training. `hub` is null when the rank is a process of its own;
// `before_main` are the seconds that starting the process took. Throws Failure, after the other processes of the job
// have been told; then neither `context` nor `trainer` may be destroyed, since they would wait for ranks that are gone.
rank_protocol::ExitCode run_rank(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, double before_main,
                                 RankContext& context, std::unique_ptr<Trainer>& trainer);

// Tells the node, when there is a reporter, and whoever reads stderr. `who` begins the line.
void report_failure(const Failure& failure, const std::string& who, Reporter* reporter);

// Connects the store, settles the attempt and the seed and starts joining the groups on a thread of its own. `hub`:
// null when the rank is a process of its own. Throws Failure.
void rendezvous(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, RankContext& context);

}  // namespace titan::runtime
