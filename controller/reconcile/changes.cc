// How a step of reconciliation becomes a transaction and what is shown once it is durable.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {

std::string job_key(const std::string& uid) { return absl::StrCat("job/", uid); }
std::string spec_key(const std::string& uid) { return absl::StrCat("spec/", uid); }
std::string deleted_key(const std::string& uid) { return absl::StrCat("deleted/", uid); }
std::string attempts_prefix(const std::string& uid) { return absl::StrCat("attempt/", uid, "/"); }
std::string attempt_key(const std::string& uid, int number) {
  return absl::StrFormat("%s%06d", attempts_prefix(uid), number);
}
std::string progress_key(const std::string& uid) { return absl::StrCat("progress/", uid); }
std::string cursors_prefix(const std::string& uid) { return absl::StrCat("cursor/", uid, "/"); }
std::string cursor_key(const std::string& uid, int attempt, int rank) {
  return absl::StrFormat("%s%06d/%06d", cursors_prefix(uid), attempt, rank);
}
std::string node_key(const std::string& node) { return absl::StrCat("node/", node); }
std::string job_events_prefix(const std::string& uid) { return absl::StrCat("event/job/", uid, "/"); }
std::string node_events_prefix(const std::string& node) { return absl::StrCat("event/node/", node, "/"); }

namespace {

// Numbered so that the oldest event beyond the kept number is known without looking.
void put_event(std::vector<store::Mutation>& mutations, const std::string& prefix, int64_t number, int64_t kept,
               const job::EventRecord& event) {
  mutations.push_back(store::put(absl::StrFormat("%s%012d", prefix, number), job::encode(event)));
  if (number > kept) mutations.push_back(store::erase(absl::StrFormat("%s%012d", prefix, number - kept)));
}

journal::Level level_of(absl::string_view severity) {
  if (severity == "error") return journal::Level::kError;
  return severity == "warning" ? journal::Level::kWarning : journal::Level::kInfo;
}

// Of an event, unless it is what one rank said: those may be many, and are no decision.
std::vector<journal::Line> line_of(const job::EventRecord& event, const std::string& uid) {
  if (event.rank >= 0) return {};
  journal::Line line{level_of(event.severity), event.reason, {}};
  line.add("job", event.job).add("uid", uid).add("node", event.node);
  if (event.attempt > 0) line.add("attempt", absl::StrCat(event.attempt));
  line.add("message", event.message);
  return {line};
}

}  // namespace

void Reconciler::write(const std::vector<journal::Line>& lines) const {
  if (options_.journal == nullptr) return;
  for (const journal::Line& line : lines) options_.journal->write(line);
}

int64_t Reconciler::now_ns() const { return absl::ToUnixNanos(clock_.now()); }

void Reconciler::commit(Change change) {
  write(change.lines);
  if (change.mutations.empty() && change.then.empty()) {
    if (change.views.empty()) return;
    published_.publish(change.views, 0);
    soft_changes_ = true;  // No transaction follows that would wake the watchers; the next tick does.
    return;
  }
  store::Transaction transaction{std::move(change.mutations), change.when_full};
  store_.commit(std::move(transaction), [this, views = std::move(change.views),
                                         then = std::move(change.then)](const absl::StatusOr<int64_t>& revision) {
    if (!revision.ok()) return;  // The store has failed and this process is about to end.
    published_.publish(views, *revision);
    if (then.empty()) return;
    sync::Lock lock(mutex_);
    for (const std::function<void()>& next : then) next();
  });
}

void Reconciler::put_job(Change& change, LiveJob& job) {
  change.mutations.push_back(store::put(job_key(job.record.uid), job::encode(job.record)));
  show(change, job);
}

void Reconciler::put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record) {
  change.mutations.push_back(store::put(attempt_key(job.record.uid, record.number), job::encode(record)));
}

void Reconciler::put_progress(Change& change, const LiveJob& job) {
  change.mutations.push_back(store::put(progress_key(job.record.uid), job::encode(job.progress)));
}

void Reconciler::put_node(Change& change, const cluster::Node& node) {
  change.mutations.push_back(store::put(node_key(node.record.name), job::encode(node.record)));
}

// The caller writes the job's record afterwards: it counts the events.
void Reconciler::add_event(Change& change, LiveJob& job, job::EventRecord event) {
  event.time_ns = now_ns();
  event.job = job.record.name;
  put_event(change.mutations, job_events_prefix(job.record.uid), ++job.record.events, options_.events_kept, event);
  for (journal::Line& line : line_of(event, job.record.uid)) change.lines.push_back(std::move(line));
}

// Likewise for the node's record.
void Reconciler::add_node_event(Change& change, cluster::Node& node, absl::string_view reason, std::string message,
                                absl::string_view severity) {
  job::EventRecord event;
  event.time_ns = now_ns();
  event.node = node.record.name;
  event.reason = std::string(reason);
  event.message = std::move(message);
  event.severity = std::string(severity);
  put_event(change.mutations, node_events_prefix(node.record.name), ++node.record.events, options_.events_kept, event);
  for (journal::Line& line : line_of(event, "")) change.lines.push_back(std::move(line));
}

JobViewPtr Reconciler::view_of(const LiveJob& job) const {
  auto view = std::make_shared<JobView>();
  view->record = std::make_shared<const job::JobRecord>(job.record);
  view->attempts = job.past;
  if (job.attempt) view->attempts.push_back(std::make_shared<const job::AttemptRecord>(job.attempt->record));
  view->progress = job.progress;
  view->pending_reason = job.pending_reason;
  view->pending_message = job.pending_message;
  return view;
}

// One view per job and transaction: the last one wins.
void Reconciler::show(Change& change, const LiveJob& job) {
  for (JobViewPtr& view : change.views) {
    if (view->record->uid == job.record.uid) {
      view = view_of(job);
      return;
    }
  }
  change.views.push_back(view_of(job));
}

// False when the event means nothing in this state: a late or repeated message, which changes nothing.
bool Reconciler::apply(LiveJob& job, job::JobEvent event) {
  const absl::StatusOr<job::JobState> next = job::next_state(job.record.state, event);
  if (!next.ok()) return false;
  job.record.state = *next;
  return true;
}

}  // namespace titan::reconcile
