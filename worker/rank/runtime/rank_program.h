#pragma once

// run_rank() is the life of one rank, a process or a thread: device, rendezvous with the other ranks, training, and the
// report of its failure.

#include <memory>

#include "worker/rank/comm/local_backend.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"
#include "worker/rank/runtime/step/trainer.h"

namespace titan::runtime {

// Makes the context of one rank, a process or a thread.
std::unique_ptr<RankContext> make_context(const RankJob& job, const std::atomic<bool>* stop_signal);

// Runs a rank from its first event to its last: device, rendezvous, training. `hub`: null if the rank is a process.
// `before_main`: seconds that starting the process took. Throws Failure after the job's other processes have been
// notified. Then neither `context` nor `trainer` may be destroyed, because their destructors would wait for ranks that
// are gone.
rank_protocol::ExitCode run_rank(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, double before_main,
                                 RankContext& context, std::unique_ptr<Trainer>& trainer);

// Reports a failure on stderr and, if `reporter` is not null, to the node. `who` begins the line.
void report_failure(const Failure& failure, const std::string& who, Reporter* reporter);

// Connects the store, settles the attempt and the seed, and starts joining the groups on a separate thread. `hub`: null
// if the rank is a process. Throws Failure.
void rendezvous(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, RankContext& context);

}  // namespace titan::runtime
