// From the store's records to a working reconciler, after a start of the controller.

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status/status.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

// Nothing: it makes no sense. It is set aside with the reason, and everything else is served.
template <typename Record>
std::optional<Record> read(store::Store& store, const store::Record& record) {
  absl::StatusOr<Record> decoded = job::decode<Record>(record.value);
  if (decoded.ok()) return *std::move(decoded);
  store.set_aside(record, std::string(decoded.status().message()));
  return std::nullopt;
}

// A node of whose record only the name is known: a job may run there. It takes no new ones until somebody has looked,
// since it may have been cordoned.
job::NodeRecord damaged_node(const std::string& key) {
  job::NodeRecord record;
  record.name = key.substr(5);
  record.cordoned = true;
  record.cordon_reason = "the controller's record of it was damaged";
  return record;
}

// Whether the job's newest attempt, which may still run, is not among those that can be read.
bool lacks_newest(const job::JobRecord& job, const std::vector<job::AttemptRecord>& attempts) {
  if (job.attempts == 0 || job::is_final(job.state)) return false;
  return attempts.empty() || attempts.back().number < job.attempts;
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
    std::optional<job::NodeRecord> node = read<job::NodeRecord>(store_, record);
    nodes_.restore(node ? *std::move(node) : damaged_node(record.key), clock_.monotonic());
  }
  // Nothing is known of a fresh cluster, so there is nothing to wait for. Set before anything below can schedule.
  schedule_after_ = nodes.empty() ? clock_.monotonic() : clock_.monotonic() + options_.lease;
  TITAN_RETURN_IF_ERROR(load_jobs());
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> deleted, store::scan_all(store_, deleted_key("")));
  for (const store::Record& record : deleted) deleted_.insert(record.key.substr(deleted_key("").size()));
  // Of these the key alone says what matters.
  std::vector<std::string> lost_cancels;
  for (const store::Quarantined& record : store_.quarantined()) {
    if (!record.lost) continue;
    if (record.key.starts_with("node/") && nodes_.find(record.key.substr(5)) == nullptr)
      nodes_.restore(damaged_node(record.key), clock_.monotonic());
    if (record.key.starts_with(deleted_key(""))) deleted_.insert(record.key.substr(deleted_key("").size()));
    if (record.key.starts_with("cancel/")) lost_cancels.push_back(record.key.substr(7));
  }
  // Cancels that were accepted, and whose effect was not written before this controller's predecessor died.
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> cancels, store::scan_all(store_, "cancel/"));
  for (const store::Record& record : cancels) {
    start_cancel(record.key.substr(7), record.value == "now", [](const absl::StatusOr<JobViewPtr>&) {});
  }
  for (const std::string& uid : lost_cancels)
    start_cancel(uid, /*now=*/false, [](const absl::StatusOr<JobViewPtr>&) {});
  return absl::OkStatus();
}

absl::Status Reconciler::load_jobs() {
  std::map<std::string, std::vector<job::AttemptRecord>> attempts;
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> attempt_records, store::scan_all(store_, "attempt/"));
  for (const store::Record& record : attempt_records) {
    std::optional<job::AttemptRecord> attempt = read<job::AttemptRecord>(store_, record);
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    if (attempt) attempts[parts[1]].push_back(*std::move(attempt));  // In key order: oldest first.
  }
  std::map<std::string, job::Progress> progress;
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> progress_records, store::scan_all(store_, "progress/"));
  for (const store::Record& record : progress_records) {
    std::optional<job::Progress> one = read<job::Progress>(store_, record);
    if (one) progress[record.key.substr(9)] = *std::move(one);
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> cursors, store::scan_all(store_, "cursor/"));
  for (const store::Record& record : cursors) {
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    int attempt = 0, rank = 0;
    int64_t sequence = 0;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &attempt) || !absl::SimpleAtoi(parts[3], &rank) ||
        !absl::SimpleAtoi(record.value, &sequence)) {
      store_.set_aside(record, "is not a cursor");
      continue;
    }
    cursors_[{parts[1], attempt, rank}] = sequence;
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> job_records, store::scan_all(store_, "job/"));
  for (const store::Record& record : job_records) {
    LiveJob job;
    std::optional<job::JobRecord> decoded = read<job::JobRecord>(store_, record);
    if (!decoded) continue;
    job.record = *std::move(decoded);
    const std::string uid = job.record.uid;
    // Its ranks may run, and a second attempt beside them is the worst that could happen: the job is set aside as a
    // whole, and its ranks are listed as those of an unknown job and left alone.
    if (lacks_newest(job.record, attempts[uid])) {
      store_.set_aside(record, absl::StrCat("attempt ", job.record.attempts, " of it cannot be read"));
      continue;
    }
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
