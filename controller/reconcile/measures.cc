#include "controller/reconcile/measures.h"

namespace titan::reconcile {

void Measures::attempt_ended(const std::string& cause) {
  metrics_.counter("titan_job_attempts_total", "Attempts that ended, by cause.", {{"cause", cause}}).Increment();
}

void Measures::lost(const std::string& phase, double seconds) {
  metrics_
      .counter("titan_job_lost_seconds_total", "Time in which jobs made no progress after a failure, by phase.",
               {{"phase", phase}})
      .Increment(seconds);
  metrics_
      .histogram("titan_recovery_duration_seconds", "Time from a failure to new progress, by phase.",
                 {{"phase", phase}})
      .Observe(seconds);
}

void Measures::recovered(double seconds) {
  metrics_
      .histogram("titan_recovery_duration_seconds", "Time from a failure to new progress, by phase.",
                 {{"phase", "total"}})
      .Observe(seconds);
}

void Measures::checkpoint(double seconds) {
  metrics_
      .histogram("titan_checkpoint_duration_seconds", "Time to write a checkpoint, staging to commit.",
                 {{"kind", "write"}})
      .Observe(seconds);
}

void Measures::checkpoint_failed() {
  metrics_.counter("titan_checkpoint_failures_total", "Saves that were given up.").Increment();
}

void Measures::scheduler_cycle(absl::Duration took) {
  metrics_.histogram("titan_scheduler_cycle_duration_seconds", "One pass over the queue.")
      .Observe(absl::ToDoubleSeconds(took));
}

void Measures::queue_wait(absl::Duration waited) {
  metrics_.histogram("titan_queue_wait_seconds", "From submission to the first placement.")
      .Observe(absl::ToDoubleSeconds(waited));
}

void Measures::store_commit(absl::Duration took) {
  metrics_.histogram("titan_store_commit_duration_seconds", "One group of transactions, including its fsync.")
      .Observe(absl::ToDoubleSeconds(took));
}

void Measures::refused(const std::string& reason) {
  metrics_.counter("titan_node_refusals_total", "Registrations of workers that were refused.", {{"reason", reason}})
      .Increment();
}

void Measures::store_failed() {
  metrics_.counter("titan_store_fsync_errors_total", "Failed writes after which the store stopped.").Increment();
}

void Measures::record_damaged() {
  metrics_.counter("titan_store_damaged_records_total", "Records that were found damaged and set aside.").Increment();
}

}  // namespace titan::reconcile
