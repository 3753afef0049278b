#include "controller/reconcile/measures.h"

#include "controller/job/restart.h"

namespace titan::reconcile {
namespace {

// Phases of a recovery, in order. kTotal is all of them.
constexpr const char* kPhases[] = {"detect", "stop", "place", "start", "load", "replay"};
constexpr char kTotal[] = "total";

}  // namespace

Measures::Measures(metrics::Metrics& metrics)
    : metrics_(metrics),
      checkpoint_failures_(metrics.counter("titan_checkpoint_failures_total", "Saves that were given up.")),
      scheduler_cycles_(metrics.histogram("titan_scheduler_cycle_duration_seconds", "One pass over the queue.")),
      queue_waits_(metrics.histogram("titan_queue_wait_seconds", "From submission to the first placement.")),
      store_commits_(
          metrics.histogram("titan_store_commit_duration_seconds", "One group of transactions, including its fsync.")),
      store_transactions_(metrics.counter("titan_store_transactions_total", "Transactions that became durable.")),
      store_failures_(
          metrics.counter("titan_store_fsync_errors_total", "Failed writes after which the store stopped.")),
      damaged_records_(
          metrics.counter("titan_store_damaged_records_total", "Records that were found damaged and set aside.")),
      kept_logs_(metrics.gauge("titan_kept_logs_bytes", "Bytes of failed ranks' logs in the store, over all jobs.")),
      leader_(metrics.gauge("titan_leader", "1 while this controller leads, 0 while it is on standby.")) {
  for (int i = 0; i <= static_cast<int>(job::Cause::kStaleAttempt); ++i) {
    attempts(std::string(job::name(static_cast<job::Cause>(i))));
  }
  for (const char* phase : kPhases) {
    lost_seconds(phase);
    recovery(phase);
  }
  recovery(kTotal);
  // rate() does not see the first increase of a counter that begins at 1.
  for (const char* reason : {job::kNewerAttempts, job::kNoSpace}) dropped_logs(reason);
  for (const char* reason : {"WRONG_CLUSTER", "NODE_ID_IN_USE", "BAD_NODE_ID", "BAD_DEVICES"}) refusals(reason);
  checkpoint_duration("stall");
  checkpoint_duration("write");
}

prometheus::Counter& Measures::attempts(const std::string& cause) {
  return metrics_.counter("titan_job_attempts_total", "Attempts that ended, by cause.", {{"cause", cause}});
}

prometheus::Counter& Measures::dropped_logs(const std::string& reason) {
  return metrics_.counter("titan_kept_logs_dropped_bytes_total",
                          "Bytes of failed ranks' logs that were dropped, or not stored for lack of space.",
                          {{"reason", reason}});
}

prometheus::Counter& Measures::lost_seconds(const std::string& phase) {
  return metrics_.counter("titan_job_lost_seconds_total",
                          "Time in which jobs made no progress after a failure, by phase.", {{"phase", phase}});
}

prometheus::Histogram& Measures::recovery(const std::string& phase) {
  return metrics_.histogram("titan_recovery_duration_seconds", "Time from a failure to new progress, by phase.",
                            {{"phase", phase}});
}

prometheus::Histogram& Measures::checkpoint_duration(const std::string& kind) {
  return metrics_.histogram(
      "titan_checkpoint_duration_seconds",
      "Duration of a checkpoint. write: from staging to commit; stall: time that training waited.", {{"kind", kind}});
}

void Measures::attempt_ended(const std::string& cause) { attempts(cause).Increment(); }

void Measures::lost(const std::string& phase, double seconds) {
  lost_seconds(phase).Increment(seconds);
  recovery(phase).Observe(seconds);
}

void Measures::recovered(double seconds) { recovery(kTotal).Observe(seconds); }

void Measures::checkpoint(double seconds) { checkpoint_duration("write").Observe(seconds); }

void Measures::checkpoint_stall(double seconds) { checkpoint_duration("stall").Observe(seconds); }

void Measures::checkpoint_failed() { checkpoint_failures_.Increment(); }

void Measures::scheduler_cycle(absl::Duration took) { scheduler_cycles_.Observe(absl::ToDoubleSeconds(took)); }

void Measures::queue_wait(absl::Duration waited) { queue_waits_.Observe(absl::ToDoubleSeconds(waited)); }

void Measures::store_commit(int transactions, absl::Duration took) {
  store_commits_.Observe(absl::ToDoubleSeconds(took));
  store_transactions_.Increment(transactions);
}

prometheus::Counter& Measures::refusals(const std::string& reason) {
  return metrics_.counter("titan_node_refusals_total", "Registrations of workers that were refused.",
                          {{"reason", reason}});
}

void Measures::refused(const std::string& reason) { refusals(reason).Increment(); }

void Measures::store_failed() { store_failures_.Increment(); }

void Measures::record_damaged() { damaged_records_.Increment(); }

void Measures::kept_logs(int64_t bytes) { kept_logs_.Set(static_cast<double>(bytes)); }

void Measures::logs_dropped(const std::string& reason, double bytes) { dropped_logs(reason).Increment(bytes); }

void Measures::leads(bool leads) { leader_.Set(leads ? 1 : 0); }

}  // namespace titan::reconcile
