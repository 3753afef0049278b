// From the store's records to a working reconciler, after a start of the controller.

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status/status.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

template <typename Record>
absl::StatusOr<Record> read(const store::Record& record) {
  absl::StatusOr<Record> decoded = job::decode<Record>(record.value);
  if (!decoded.ok()) return annotate(decoded.status(), absl::StrCat("store record '", record.key, "'"));
  return decoded;
}

}  // namespace

Reconciler::Reconciler(store::Store& store, const Clock& clock, Options options, Measures& measures)
    : store_(store),
      clock_(clock),
      options_(std::move(options)),
      measures_(measures),
      published_(store.revision()),
      nodes_(options_.lease, options_.beat) {}

Reconciler::~Reconciler() = default;

absl::StatusOr<std::unique_ptr<Reconciler>> Reconciler::open(store::Store& store, const Clock& clock, Options options,
                                                             Measures& measures) {
  std::unique_ptr<Reconciler> reconciler(new Reconciler(store, clock, std::move(options), measures));
  TITAN_RETURN_IF_ERROR(reconciler->load());
  reconciler->subscription_ = store.subscribe([raw = reconciler.get()](int64_t) { raw->on_durable(); });
  return reconciler;
}

absl::Status Reconciler::load() {
  sync::Lock lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> nodes, store::scan_all(store_, "node/"));
  for (const store::Record& record : nodes) {
    TITAN_ASSIGN_OR_RETURN(job::NodeRecord node, read<job::NodeRecord>(record));
    nodes_.restore(std::move(node), clock_.monotonic());
  }
  // Nothing is known of a fresh cluster, so there is nothing to wait for. Set before anything below can schedule.
  schedule_after_ = nodes.empty() ? clock_.monotonic() : clock_.monotonic() + options_.lease;
  TITAN_RETURN_IF_ERROR(load_jobs());
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> deleted, store::scan_all(store_, deleted_key("")));
  for (const store::Record& record : deleted) deleted_.insert(record.key.substr(deleted_key("").size()));
  // Cancels that were accepted, and whose effect was not written before this controller's predecessor died.
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> cancels, store::scan_all(store_, "cancel/"));
  for (const store::Record& record : cancels) {
    start_cancel(record.key.substr(7), record.value == "now", [](const absl::StatusOr<JobViewPtr>&) {});
  }
  return absl::OkStatus();
}

absl::Status Reconciler::load_jobs() {
  std::map<std::string, std::vector<job::AttemptRecord>> attempts;
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> attempt_records, store::scan_all(store_, "attempt/"));
  for (const store::Record& record : attempt_records) {
    TITAN_ASSIGN_OR_RETURN(job::AttemptRecord attempt, read<job::AttemptRecord>(record));
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    attempts[parts[1]].push_back(std::move(attempt));  // In key order: oldest first.
  }
  std::map<std::string, job::Progress> progress;
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> progress_records, store::scan_all(store_, "progress/"));
  for (const store::Record& record : progress_records) {
    TITAN_ASSIGN_OR_RETURN(progress[record.key.substr(9)], read<job::Progress>(record));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> cursors, store::scan_all(store_, "cursor/"));
  for (const store::Record& record : cursors) {
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    int attempt = 0, rank = 0;
    int64_t sequence = 0;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &attempt) || !absl::SimpleAtoi(parts[3], &rank) ||
        !absl::SimpleAtoi(record.value, &sequence)) {
      return absl::DataLossError(absl::StrCat("store record '", record.key, "' is not a cursor"));
    }
    cursors_[{parts[1], attempt, rank}] = sequence;
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> job_records, store::scan_all(store_, "job/"));
  for (const store::Record& record : job_records) {
    LiveJob job;
    TITAN_ASSIGN_OR_RETURN(job.record, read<job::JobRecord>(record));
    const std::string uid = job.record.uid;
    job.progress = progress[uid];
    job::note_progress(job.record.history, job.progress.step, job.progress.committed_step);
    for (job::AttemptRecord& attempt : attempts[uid]) {
      if (attempt.end_time_ns == 0 && !job::is_final(job.record.state)) {
        restore_attempt(job, std::move(attempt));
      } else {
        job.past.push_back(std::make_shared<const job::AttemptRecord>(std::move(attempt)));
      }
    }
    names_[job.record.name] = uid;
    if (!job.record.request_id.empty()) requests_[job.record.request_id] = uid;
    next_order_ = std::max(next_order_, job.record.order + 1);
    auto view = std::make_shared<JobView>(*view_of(job));
    published_.publish({view}, record.revision);
    if (job::is_final(job.record.state)) continue;
    if (!job.attempt) job.idle_since = clock_.monotonic();
    claim_folder(job.record);
    jobs_.emplace(uid, std::move(job));
  }
  return absl::OkStatus();
}

// Its nodes will say what became of it; until then it counts as running where it was.
void Reconciler::restore_attempt(LiveJob& job, job::AttemptRecord record) {
  LiveAttempt attempt;
  for (const job::Placement& placement : record.placements) {
    NodePart& part = attempt.parts[placement.node];
    part.placement = placement;
    part.prepared = job.record.state != job::JobState::kReserving;
  }
  attempt.start_sent = job.record.state != job::JobState::kReserving;
  attempt.failing = job.record.state == job::JobState::kRecovering;
  attempt.loaded = record.first_step_time_ns != 0;
  attempt.record = std::move(record);
  // Progress is an earlier attempt's until this one has finished a step.
  if (attempt.loaded) attempt.record.last_step = std::max(attempt.record.last_step, job.progress.step);
  if (attempt.failing) attempt.stop_time_ns = now_ns();
  job.attempt = std::move(attempt);
}

}  // namespace titan::reconcile
