#include "worker/rank/runtime/local_ranks.h"

#include <ATen/Parallel.h>

#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/sync/sync.h"
#include "worker/rank/runtime/profiling/tracer.h"
#include "worker/rank/runtime/rank_program.h"

namespace titan::runtime {

using rank_protocol::ExitCode;

namespace {

// A computing rank does not check the hub, so the others exit without it.
constexpr std::chrono::seconds kTimeout{10};

// Exit codes of the rank threads, for the thread that waits for them.
class Outcome {
 public:
  explicit Outcome(int ranks) : running_(ranks) {}

  void ended(ExitCode code) {
    sync::Lock lock(mutex_);
    if (code_ == rank_protocol::kExitFinished) code_ = code;  // Ranks that stop do so together.
    --running_;
    changed_.notify_all();
  }

  // The first failure other than the loss of another rank is the cause.
  void failed(const Failure& failure) {
    sync::Lock lock(mutex_);
    const bool peer = failure.exit_code() == rank_protocol::kExitPeerLost;
    if (!cause_ || (!peer && *cause_ == rank_protocol::kExitPeerLost)) cause_ = failure.exit_code();
    --running_;
    changed_.notify_all();
  }

  ExitCode wait() {
    sync::Lock lock(mutex_);
    while (running_ > 0 && !cause_) changed_.wait(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (running_ > 0 && changed_.wait_until(mutex_, deadline) != std::cv_status::timeout) continue;
    return cause_.value_or(code_);
  }

 private:
  sync::Mutex mutex_;
  sync::Condition changed_;
  int running_ TITAN_GUARDED_BY(mutex_);
  ExitCode code_ TITAN_GUARDED_BY(mutex_) = rank_protocol::kExitFinished;
  std::optional<ExitCode> cause_ TITAN_GUARDED_BY(mutex_);
};

void run_thread(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, double before_main,
                const std::atomic<bool>* stop_signal, Outcome& outcome) {
  at::set_num_threads(job.threads);  // Before the first operation of this thread.
  // Kept for the life of the process: a rank that ends must not look lost to ranks that are still exiting.
  auto* context = make_context(job, stop_signal).release();
  auto* trainer = new std::unique_ptr<Trainer>;
  try {
    const ExitCode code = run_rank(job, hub, before_main, *context, *trainer);
    trainer->reset();  // Closes the outputs.
    outcome.ended(code);
  } catch (...) {
    const Failure failure = current_failure();
    report_failure(failure, absl::StrCat("titan-rank: rank ", job.rank), context->reporter.get());
    outcome.failed(failure);
    hub->fail(absl::StrCat("rank ", job.rank, " failed: ", failure.reason(), ": ", failure.what()));
  }
}

}  // namespace

ExitCode run_local_ranks(const RankJob& job, const std::atomic<bool>* stop_signal, double before_main) {
  // Never destroyed; see the header.
  auto* hub = new std::shared_ptr<comm::LocalHub>(std::make_shared<comm::LocalHub>());
  auto* outcome = new Outcome(job.world);
  prepare_profiler();
  for (int rank = 0; rank < job.world; ++rank) {
    auto* own = new RankJob(job);
    own->rank = own->local_rank = rank;
    std::thread([own, hub, before_main, stop_signal, outcome] {
      run_thread(*own, *hub, before_main, stop_signal, *outcome);
    }).detach();
  }
  return outcome->wait();
}

}  // namespace titan::runtime
