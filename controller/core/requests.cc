// What clients ask for.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/testing/planted.h"
#include "common/base/text/counted.h"
#include "common/service/rpc/error.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"

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

std::string full_name(const job::Spec& spec) { return absl::StrCat("projects/", spec.project, "/jobs/", spec.job_id); }

}  // namespace

absl::Status no_such_job(const std::string& what) {
  return rpc::error(StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("no job ", what), {{"job", what}});
}

absl::Status Core::check_new(const job::Spec& spec, const std::string& name) const {
  if (names_.contains(name)) {
    return rpc::error(StatusCode::kAlreadyExists, "JOB_ID_IN_USE",
                      absl::StrCat("job ", name, " exists already; choose another scheduling.job_id or leave it empty"),
                      {{"job", name}});
  }
  return check_folder(spec);
}

absl::StatusOr<JobViewPtr> Core::would_create(const job::Spec& spec) const {
  const std::string name = full_name(spec);
  TITAN_RETURN_IF_ERROR(check_new(spec, name));
  LiveJob job;
  job.record.name = name;
  job.record.spec = limited(spec);
  return view_of(job);
}

// With the cluster's limit where it gives none of its own.
job::Spec Core::limited(job::Spec spec) const {
  if (spec.time_limit_seconds <= 0) spec.time_limit_seconds = options_.default_time_limit_seconds;
  return spec;
}

void Core::take(const CreateJob& input) {
  if (const auto known = requests_.find(input.request_id); !input.request_id.empty() && known != requests_.end()) {
    const std::string& uid = known->second;
    if (absl::Status not_again = check_repeated(input, uid); !not_again.ok()) return refuse(input.request, not_again);
    const auto creation = creating_.find(uid);
    if (creation == creating_.end()) return answer_when_shown(input.request, uid);
    return creation->second.waiting.push_back(input.request);
  }
  if (!input.unfit.ok()) return refuse(input.request, input.unfit);
  Creation creation;
  LiveJob& job = creation.job;
  job::JobRecord& record = job.record;
  record.name = full_name(input.spec);
  record.request_id = input.request_id;
  record.fingerprint = input.fingerprint;
  record.spec = limited(input.spec);
  record.create_time_ns = now_ns();
  record.uid = input.uid;
  record.labels = input.labels;
  record.owner = input.actor;
  record.run_as = input.run_as;
  record.run_as_local = input.run_as_local;
  record.run_as_known = true;
  if (absl::Status bad = check_new(record.spec, record.name); !bad.ok()) return refuse(input.request, bad);
  record.order = next_order_++;
  names_[record.name] = record.uid;
  claim_folder(record);
  if (!input.request_id.empty()) requests_[input.request_id] = record.uid;
  creation.waiting.push_back(input.request);

  // The job joins the queue only once it is durable, so that a full disk can refuse it without a trace.
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  job::EventRecord event;
  event.reason = "JobQueued";
  event.message =
      absl::StrCat(counted(record.spec.ranks, record.spec.device + " rank"), ", priority ", record.spec.priority);
  event.actor = input.actor;
  add_event(change, job, std::move(event));
  change.mutations.push_back(store::put(spec_key(record.uid), input.stored));
  job.idle_since = now_.monotonic;
  put_job(change, job);
  expect(change, Created{record.uid});
  creating_.emplace(input.uid, std::move(creation));
  commit(std::move(change));
}

void Core::go_on(const Created& created, const absl::Status& status) {
  auto node = creating_.extract(created.uid);
  Creation& creation = node.mapped();
  if (status.ok()) {
    hold_back(jobs_.emplace(created.uid, std::move(creation.job)).first->second);
    for (const RequestId request : creation.waiting) answer_when_shown(request, created.uid);
    return request_schedule(/*urgent=*/false);
  }
  const job::JobRecord& record = creation.job.record;
  names_.erase(record.name);
  drop_folder(record);
  requests_.erase(record.request_id);
  for (const RequestId request : creation.waiting) refuse(request, status);
}

absl::StatusOr<LiveJob*> Core::live_job(const std::string& uid, absl::string_view verb) {
  const auto it = jobs_.find(uid);
  if (it != jobs_.end()) return &it->second;
  const auto over = over_.find(uid);
  if (over == over_.end()) return no_such_job(uid);
  const job::JobRecord& record = *over->second->record;
  return rpc::error(StatusCode::kFailedPrecondition, "JOB_OVER",
                    absl::StrCat("job ", record.name, " is ", job::name(record.state), ": cannot ", verb),
                    {{"state", std::string(job::name(record.state))}});
}

void Core::take(const CancelJob& input) {
  const auto over = over_.find(input.uid);
  if (over != over_.end() && (over->second->record->state == JobState::kCancelled ||
                              accepted_before(over->second->record->intent, input.request_id))) {
    return answer_when_shown(input.request, input.uid);
  }
  const absl::StatusOr<LiveJob*> job = live_job(input.uid, "cancel");
  if (!job.ok()) return refuse(input.request, job.status());
  // A request is refused when the disk is full; what follows from an accepted one is not: hence two transactions.
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  change.mutations.push_back(store::put(
      cancel_key(input.uid), absl::StrCat(input.now ? "now" : "save", " ", input.actor, " ", input.request_id)));
  expect(change, CancelAccepted{input.request, input.uid, input.now, input.actor, input.request_id});
  if (testing::planted(testing::Bug::kAnsweredBeforeDurable))
    effects_.now.replies.push_back({input.request, absl::OkStatus(), input.uid});
  commit(std::move(change));
}

void Core::go_on(const CancelAccepted& accepted, const absl::Status& status) {
  if (!status.ok()) return refuse(accepted.request, status);
  start_cancel(accepted);
}

void Core::start_cancel(const CancelAccepted& accepted) {
  const auto it = jobs_.find(accepted.uid);
  Change change;
  change.mutations.push_back(store::erase(cancel_key(accepted.uid)));
  if (it == jobs_.end()) {  // It ended meanwhile, or was even deleted.
    commit(std::move(change));
    const auto over = over_.find(accepted.uid);
    // As the same request would be answered from now on.
    if (over != over_.end() && over->second->record->state != JobState::kCancelled) {
      return refuse(accepted.request, live_job(accepted.uid, "cancel").status());
    }
    if (over != over_.end()) return answer_when_shown(accepted.request, accepted.uid);
    return refuse(accepted.request, no_such_job(accepted.uid));
  }
  LiveJob& job = it->second;
  job::Intent& intent = job.record.intent;
  const bool repeated = intent.stop && intent.cause == kCancelled;  // A stop for its time limit becomes a cancel.
  if (!repeated) intent = {true, true, kCancelled, accepted.actor, now_ns(), intent.deadline_ns, {}};
  if (!accepted.request_id.empty() && !accepted_before(intent, accepted.request_id)) {
    intent.request_ids.push_back(accepted.request_id);
  }
  if (intent.request_ids.size() > kCancelsKept) intent.request_ids.erase(intent.request_ids.begin());
  intent.save = intent.save && !accepted.now;
  if (!repeated) {
    add_event(change, job,
              {.reason = "CancelRequested",
               .message = accepted.now            ? "without saving"
                          : job.record.spec.saves ? "saving first"
                                                  : "without saving: its checkpoints are turned off",
               .actor = accepted.actor});
  }
  carry_out_stop(job, JobEvent::kStopped, std::move(change));
  answer_when_shown(accepted.request, accepted.uid);
  request_schedule(/*urgent=*/true);
}

void Core::take(const CheckpointJob& input) {
  const absl::StatusOr<LiveJob*> found = live_job(input.uid, "checkpoint");
  if (!found.ok()) return refuse(input.request, found.status());
  LiveJob& job = **found;
  if (!job.record.spec.saves) {
    return refuse(input.request,
                  rpc::error(StatusCode::kFailedPrecondition, "CHECKPOINTS_DISABLED",
                             absl::StrCat("job ", job.record.name, " has checkpoint.enable = false: it cannot save")));
  }
  if (job.record.state != JobState::kCheckpointing && !apply(job, JobEvent::kCheckpointRequested)) {
    return refuse(input.request, not_running(job, "only a running job can save a checkpoint"));
  }
  Change change;
  add_event(change, job,
            {.attempt = job.attempt->record.number,
             .reason = "CheckpointRequested",
             .message = "at the next step edge",
             .actor = input.actor});
  put_job(change, job);
  expect(change, Tell{job.key(), Command::kCheckpoint, job.attempt->nodes()});
  commit(std::move(change));
  answer_when_shown(input.request, input.uid);
}

void Core::take(const ProfileJob& input) {
  const absl::StatusOr<LiveJob*> found = live_job(input.uid, "profile");
  if (!found.ok()) return refuse(input.request, found.status());
  LiveJob& job = **found;
  if (job.record.state != JobState::kRunning && job.record.state != JobState::kCheckpointing) {
    return refuse(input.request, not_running(job, "only a running job can be profiled"));
  }
  Change change;
  add_event(change, job,
            {.attempt = job.attempt->record.number,
             .reason = "TraceRequested",
             .message = absl::StrCat(counted(input.steps, "step"), " of ", input.ranks.size() == 1 ? "rank " : "ranks ",
                                     absl::StrJoin(input.ranks, ", ")),
             .actor = input.actor});
  put_job(change, job);
  commit(std::move(change));
  answer_when_shown(input.request, input.uid);
}

void Core::take(const CordonNode& input) { cordon(input, /*leave=*/false); }

void Core::cordon(const CordonNode& input, bool leave) {
  Node* node = nodes_.find(input.node);
  if (node == nullptr) return refuse(input.request, no_such_node(input.node));
  Node changed = *node;
  set_cordon(changed.record, input, leave, now_ns());
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  if (node->record.cordoned != input.cordoned) {
    add_node_event(change, changed, input.cordoned ? "NodeCordoned" : "NodeUncordoned", input.reason, "info",
                   input.actor);
  }
  put_node(change, changed);
  node->record.events = changed.record.events;  // The number is taken, whatever becomes of this transaction.
  expect(change, Cordoned{input, leave});
  commit(std::move(change));
}

void Core::go_on(const Cordoned& cordoned, const absl::Status& status) {
  const CordonNode& asked = cordoned.asked;
  if (!status.ok()) return refuse(asked.request, status);
  Node* node = nodes_.find(asked.node);
  if (node == nullptr) return refuse(asked.request, no_such_node(asked.node));  // Deleted meanwhile.
  set_cordon(node->record, asked, cordoned.leave, now_ns());
  if (!asked.cordoned) node->record.blames.clear();  // Who puts it back into service has mended it.
  Change again;  // A session that registered meanwhile has written the record as it was before.
  put_node(again, *node);
  commit(std::move(again));
  tell_of(*node);
  request_schedule(/*urgent=*/true);
  if (cordoned.leave) return ask_to_leave(asked.node, asked.request);
  Reply& reply = effects_.now.replies.emplace_back();
  reply.request = asked.request;
  reply.node = node_view(*node);
}

}  // namespace titan::core
