// Requests of clients.

#include "controller/core/requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using absl::StatusCode;
using job::JobEvent;
using job::JobState;

constexpr size_t kCancelsKept = 8;
constexpr char kCancelled[] = "CANCELLED";

bool accepted_before(const job::Intent& intent, const std::string& request_id) {
  const std::vector<std::string>& known = intent.request_ids;
  return !request_id.empty() && std::find(known.begin(), known.end(), request_id) != known.end();
}

absl::Status not_running(const LiveJob& job, absl::string_view why) {
  return rpc::error(StatusCode::kFailedPrecondition, "JOB_NOT_RUNNING",
                    absl::StrCat("job ", job.record.name, " is ", job::name(job.record.state), ": ", why),
                    {{"state", std::string(job::name(job.record.state))}});
}

void set_cordon(job::NodeRecord& record, const CordonNode& asked, bool leave, int64_t now) {
  record.cordoned = asked.cordoned;
  record.cordon_reason = asked.cordoned ? asked.reason : "";
  if (!asked.cordoned) record.drain = {};
  if (leave && record.drain.time_ns == 0) record.drain = {asked.actor, now, asked.reason};
}

std::string full_name(const job::SchedulingSpec& spec) {
  return absl::StrCat("projects/", spec.project, "/jobs/", spec.job_id);
}

absl::Status check_new(const State& state, const job::SchedulingSpec& spec, const std::string& name) {
  if (state.jobs.has_name(name)) {
    return rpc::error(StatusCode::kAlreadyExists, "JOB_ID_IN_USE",
                      absl::StrCat("job ", name, " exists already; choose another scheduling.job_id or leave it empty"),
                      {{"job", name}});
  }
  return check_folder(state, spec);
}

// Adds the cluster's time limit to a job that gives none.
job::SchedulingSpec limited(const CoreOptions& options, job::SchedulingSpec spec) {
  if (spec.time_limit_seconds <= 0) spec.time_limit_seconds = options.default_time_limit_seconds;
  return spec;
}

absl::StatusOr<LiveJob*> live_job(Jobs& jobs, const std::string& uid, absl::string_view verb) {
  if (LiveJob* live = jobs.find(uid)) return live;
  const JobViewPtr over = jobs.find_over(uid);
  if (over == nullptr) return no_such_job(uid);
  const job::JobRecord& record = *over->record;
  return rpc::error(StatusCode::kFailedPrecondition, "JOB_OVER",
                    absl::StrCat("job ", record.name, " is ", job::name(record.state), ": cannot ", verb),
                    {{"state", std::string(job::name(record.state))}});
}

}  // namespace

void Requests::add(const std::string& request_id, const std::string& uid) {
  if (!request_id.empty()) uids_[request_id] = uid;
}

void Requests::add_if_new(const std::string& request_id, const std::string& uid) {
  if (!request_id.empty()) uids_.try_emplace(request_id, uid);
}

void Requests::forget(const std::string& request_id, const std::string& uid) {
  const auto found = uids_.find(request_id);
  if (found != uids_.end() && found->second == uid) uids_.erase(found);
}

const std::string* Requests::find(const std::string& request_id) const {
  const auto found = uids_.find(request_id);
  return found == uids_.end() ? nullptr : &found->second;
}

absl::Status no_such_job(const std::string& what) {
  return rpc::error(StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("no job ", what), {{"job", what}});
}

absl::StatusOr<JobViewPtr> would_create(const State& state, const CoreOptions& options,
                                        const job::SchedulingSpec& spec) {
  const std::string name = full_name(spec);
  TITAN_RETURN_IF_ERROR(check_new(state, spec, name));
  LiveJob job;
  job.record.name = name;
  job.record.spec = limited(options, spec);
  return view_of(job);
}

void take(Step& step, const CreateJob& input) {
  if (const std::string* known = step.state.requests.find(input.request_id)) {
    const std::string uid = *known;
    if (absl::Status not_again = check_repeated(step.state, input, uid); !not_again.ok())
      return step.refuse(input.request, not_again);
    Creation* creation = step.state.jobs.find_creation(uid);
    if (creation == nullptr) return answer_when_shown(step, input.request, uid);
    return creation->waiting.push_back(input.request);
  }
  if (!input.unfit.ok()) return step.refuse(input.request, input.unfit);
  Creation creation;
  LiveJob& job = creation.job;
  job::JobRecord& record = job.record;
  record.name = full_name(input.spec);
  record.request_id = input.request_id;
  record.fingerprint = input.fingerprint;
  record.spec = limited(step.options, input.spec);
  record.create_time_ns = step.now.wall_ns();
  record.uid = input.uid;
  record.labels = input.labels;
  record.owner = input.actor;
  record.run_as = input.run_as;
  record.run_as_local = input.run_as_local;
  if (absl::Status bad = check_new(step.state, record.spec, record.name); !bad.ok())
    return step.refuse(input.request, bad);
  step.state.jobs.register_new(record);
  step.state.folders.claim(record);
  step.state.requests.add(input.request_id, record.uid);
  creation.waiting.push_back(input.request);

  // The job joins the queue only once it is durable, so that a full disk can refuse it without a trace.
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  job::EventRecord event;
  event.reason = "JobQueued";
  event.message =
      absl::StrCat(counted(record.spec.ranks, record.spec.device + " rank"), ", priority ", record.spec.priority);
  event.actor = input.actor;
  add_event(step, change, job, std::move(event));
  change.mutations.push_back(store::put(spec_key(record.uid), input.stored));
  job.idle_since = step.now.monotonic;
  put_job(change, job);
  step.expect(change, Created{record.uid});
  step.state.jobs.begin_creation(std::move(creation));
  step.commit(std::move(change));
}

void on_outcome(Step& step, const Created& created, const absl::Status& status) {
  Creation creation = step.state.jobs.end_creation(created.uid);
  if (status.ok()) {
    hold_back(step.state.queue, step.state.jobs.add(std::move(creation.job)));
    for (const RequestId request : creation.waiting) answer_when_shown(step, request, created.uid);
    return request_schedule(step, /*urgent=*/false);
  }
  const job::JobRecord& record = creation.job.record;
  step.state.jobs.unregister(record.name);
  step.state.folders.drop(record.uid);
  step.state.requests.forget(record.request_id, record.uid);
  for (const RequestId request : creation.waiting) step.refuse(request, status);
}

void take(Step& step, const CancelJob& input) {
  const JobViewPtr over = step.state.jobs.find_over(input.uid);
  if (over != nullptr &&
      (over->record->state == JobState::kCancelled || accepted_before(over->record->intent, input.request_id))) {
    return answer_when_shown(step, input.request, input.uid);
  }
  const absl::StatusOr<LiveJob*> job = live_job(step.state.jobs, input.uid, "cancel");
  if (!job.ok()) return step.refuse(input.request, job.status());
  // A full disk may refuse a request, but not what follows from an accepted one: hence two transactions.
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  change.mutations.push_back(store::put(
      cancel_key(input.uid), absl::StrCat(input.now ? "now" : "save", " ", input.actor, " ", input.request_id)));
  step.expect(change, CancelAccepted{input.request, input.uid, input.now, input.actor, input.request_id});
  step.commit(std::move(change));
}

void on_outcome(Step& step, const CancelAccepted& accepted, const absl::Status& status) {
  if (!status.ok()) return step.refuse(accepted.request, status);
  start_cancel(step, accepted);
}

void start_cancel(Step& step, const CancelAccepted& accepted) {
  LiveJob* live = step.state.jobs.find(accepted.uid);
  Change change;
  change.mutations.push_back(store::erase(cancel_key(accepted.uid)));
  if (live == nullptr) {  // It ended meanwhile, or was even deleted.
    step.commit(std::move(change));
    const JobViewPtr over = step.state.jobs.find_over(accepted.uid);
    // The answer is the same as to a repeated request from now on.
    if (over != nullptr && over->record->state != JobState::kCancelled) {
      return step.refuse(accepted.request, live_job(step.state.jobs, accepted.uid, "cancel").status());
    }
    if (over != nullptr) return answer_when_shown(step, accepted.request, accepted.uid);
    return step.refuse(accepted.request, no_such_job(accepted.uid));
  }
  LiveJob& job = *live;
  job::Intent& intent = job.record.intent;
  const bool repeated = intent.stop && intent.cause == kCancelled;  // A stop for the time limit becomes a cancel.
  if (!repeated) intent = {true, true, kCancelled, accepted.actor, step.now.wall_ns(), intent.deadline_ns, {}};
  if (!accepted.request_id.empty() && !accepted_before(intent, accepted.request_id)) {
    intent.request_ids.push_back(accepted.request_id);
  }
  if (intent.request_ids.size() > kCancelsKept) intent.request_ids.erase(intent.request_ids.begin());
  intent.save = intent.save && !accepted.now;
  if (!repeated) {
    add_event(step, change, job,
              {.reason = "CancelRequested",
               .message = accepted.now            ? "without saving"
                          : job.record.spec.saves ? "saving first"
                                                  : "without saving: its checkpoints are turned off",
               .actor = accepted.actor});
  }
  carry_out_stop(step, job, JobEvent::kStopped, std::move(change));
  answer_when_shown(step, accepted.request, accepted.uid);
  request_schedule(step, /*urgent=*/true);
}

void take(Step& step, const CheckpointJob& input) {
  const absl::StatusOr<LiveJob*> found = live_job(step.state.jobs, input.uid, "checkpoint");
  if (!found.ok()) return step.refuse(input.request, found.status());
  LiveJob& job = **found;
  if (!job.record.spec.saves) {
    return step.refuse(input.request, rpc::error(StatusCode::kFailedPrecondition, "CHECKPOINTS_DISABLED",
                                                 absl::StrCat("job ", job.record.name,
                                                              " has checkpoint.enable = false: it cannot save")));
  }
  if (job.record.state != JobState::kCheckpointing && !apply(job, JobEvent::kCheckpointRequested)) {
    return step.refuse(input.request, not_running(job, "only a running job can save a checkpoint"));
  }
  Change change;
  add_event(step, change, job,
            {.attempt = job.attempt->record.number,
             .reason = "CheckpointRequested",
             .message = "at the next step edge",
             .actor = input.actor});
  put_job(change, job);
  step.expect(change, SendCommand{job.key(), CommandKind::kCheckpoint, job.attempt->nodes()});
  step.commit(std::move(change));
  answer_when_shown(step, input.request, input.uid);
}

void take(Step& step, const ProfileJob& input) {
  const absl::StatusOr<LiveJob*> found = live_job(step.state.jobs, input.uid, "profile");
  if (!found.ok()) return step.refuse(input.request, found.status());
  LiveJob& job = **found;
  if (job.record.state != JobState::kRunning && job.record.state != JobState::kCheckpointing) {
    return step.refuse(input.request, not_running(job, "only a running job can be profiled"));
  }
  Change change;
  add_event(step, change, job,
            {.attempt = job.attempt->record.number,
             .reason = "TraceRequested",
             .message = absl::StrCat(counted(input.steps, "step"), " of ", input.ranks.size() == 1 ? "rank " : "ranks ",
                                     absl::StrJoin(input.ranks, ", ")),
             .actor = input.actor});
  put_job(change, job);
  step.commit(std::move(change));
  answer_when_shown(step, input.request, input.uid);
}

void take(Step& step, const CordonNode& input) { cordon(step, input, /*leave=*/false); }

void cordon(Step& step, const CordonNode& input, bool leave) {
  Node* node = step.state.nodes.find(input.node);
  if (node == nullptr) return step.refuse(input.request, no_such_node(input.node));
  Node changed = *node;
  set_cordon(changed.record, input, leave, step.now.wall_ns());
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  if (node->record.cordoned != input.cordoned) {
    add_node_event(step, change, changed, input.cordoned ? "NodeCordoned" : "NodeUncordoned", input.reason, "info",
                   input.actor);
  }
  put_node(step, change, changed);
  node->record.events = changed.record.events;  // The number is used, whatever becomes of this transaction.
  step.expect(change, Cordoned{input, leave});
  step.commit(std::move(change));
}

void on_outcome(Step& step, const Cordoned& cordoned, const absl::Status& status) {
  const CordonNode& asked = cordoned.asked;
  if (!status.ok()) return step.refuse(asked.request, status);
  Node* node = step.state.nodes.find(asked.node);
  if (node == nullptr) return step.refuse(asked.request, no_such_node(asked.node));  // It was deleted meanwhile.
  set_cordon(node->record, asked, cordoned.leave, step.now.wall_ns());
  if (!asked.cordoned) node->record.blames.clear();  // An operator who uncordons it has repaired it.
  Change again;  // A session that registered meanwhile may have written the record as it was before.
  put_node(step, again, *node);
  step.commit(std::move(again));
  update_scheduler_node(step, *node);
  request_schedule(step, /*urgent=*/true);
  if (cordoned.leave) return ask_to_leave(step, asked.node, asked.request);
  Reply& reply = step.effects.now.replies.emplace_back();
  reply.request = asked.request;
  reply.node = node_view(step.state, *node);
}

}  // namespace titan::core
