// How a step's decisions become a transaction, and what is shown once it is durable.

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {

namespace {

// Events are numbered, so that the oldest one beyond `kept` is known without a look at the store.
void put_event(std::vector<store::Mutation>& mutations, const std::string& prefix, int64_t number, int64_t kept,
               const job::EventRecord& event) {
  mutations.push_back(store::put(event_key(prefix, number), job::encode(event)));
  if (number > kept) mutations.push_back(store::erase(event_key(prefix, number - kept)));
}

journal::Level level_of(absl::string_view severity) {
  if (severity == "error") return journal::Level::kError;
  return severity == "warning" ? journal::Level::kWarning : journal::Level::kInfo;
}

// Returns the log line of an event. Events of single ranks have none: they may be many and are not decisions.
std::vector<journal::Line> line_of(const job::EventRecord& event, const std::string& uid) {
  if (event.rank >= 0) return {};
  journal::Line line{level_of(event.severity), event.reason, {}};
  line.add("job", event.job).add("uid", uid).add("node", event.node);
  if (event.attempt > 0) line.add("attempt", absl::StrCat(event.attempt));
  line.add("message", event.message).add("actor", event.actor);
  return {line};
}

}  // namespace

void put_job(Change& change, LiveJob& job) {
  change.mutations.push_back(store::put(job_key(job.record.uid), job::encode(job.record)));
  show(change, job);
}

void put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record) {
  change.mutations.push_back(store::put(attempt_key(job.record.uid, record.number), job::encode(record)));
}

void put_progress(Change& change, const LiveJob& job) {
  change.mutations.push_back(store::put(progress_key(job.record.uid), job::encode(job.progress)));
}

void put_node(Step& step, Change& change, const Node& node) {
  step.touch(node.record.name);
  change.mutations.push_back(store::put(node_key(node.record.name), job::encode(node.record)));
}

void add_event(const Step& step, Change& change, LiveJob& job, job::EventRecord event) {
  event.time_ns = step.now.wall_ns();
  event.job = job.record.name;
  event.message = text::shortened(std::move(event.message), job::kMaxMessageLength);
  put_event(change.mutations, job_events_prefix(job.record.uid), ++job.record.events, step.options.events_kept, event);
  for (journal::Line& line : line_of(event, job.record.uid)) change.then.lines.push_back(std::move(line));
}

void add_node_event(const Step& step, Change& change, Node& node, absl::string_view reason, std::string message,
                    absl::string_view severity, std::string actor, std::string job) {
  job::EventRecord event;
  event.time_ns = step.now.wall_ns();
  event.job = std::move(job);
  event.node = node.record.name;
  event.reason = std::string(reason);
  event.message = text::shortened(std::move(message), job::kMaxMessageLength);
  event.severity = std::string(severity);
  event.actor = std::move(actor);
  put_event(change.mutations, node_events_prefix(node.record.name), ++node.record.events, step.options.events_kept,
            event);
  for (journal::Line& line : line_of(event, "")) change.then.lines.push_back(std::move(line));
}

JobViewPtr view_of(const LiveJob& job) {
  auto view = std::make_shared<JobView>();
  view->record = std::make_shared<const job::JobRecord>(job.record);
  view->attempts = job.past;
  if (job.attempt) view->attempts.push_back(std::make_shared<const job::AttemptRecord>(job.attempt->record));
  view->progress = job.progress;
  view->pending_reason = job.pending_reason;
  view->pending_message = job.pending_message;
  view->slow = slow_ranks(job);
  return view;
}

LiveJob ended_job(const JobView& view) {
  LiveJob job;
  job.record = *view.record;
  job.past = view.attempts;
  job.progress = view.progress;
  return job;
}

// A transaction has one view per job: the last one wins.
void show(Change& change, const LiveJob& job) {
  for (JobViewPtr& view : change.then.views) {
    if (view->record->uid == job.record.uid) {
      view = view_of(job);
      return;
    }
  }
  change.then.views.push_back(view_of(job));
}

// Late and repeated messages bring events without a meaning in the job's state.
bool apply(LiveJob& job, job::JobEvent event) {
  const absl::StatusOr<job::JobState> next = job::next_state(job.record.state, event);
  if (!next.ok()) return false;
  job.record.state = *next;
  return true;
}

}  // namespace titan::core
