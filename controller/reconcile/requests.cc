// What clients ask for.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/error.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

using absl::StatusCode;
using job::JobEvent;
using job::JobState;

std::string full_name(const job::Spec& spec) { return absl::StrCat("projects/", spec.project, "/jobs/", spec.job_id); }

}  // namespace

absl::Status no_such_job(const std::string& what) {
  return rpc::error(StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("no job ", what), {{"job", what}});
}

absl::Status Reconciler::check_new(const job::Spec& spec, const std::string& name) const {
  if (names_.contains(name)) {
    return rpc::error(StatusCode::kAlreadyExists, "JOB_ID_IN_USE",
                      absl::StrCat("job ", name, " exists already; choose another scheduling.job_id or leave it empty"),
                      {{"job", name}});
  }
  return check_folder(spec);
}

absl::StatusOr<JobViewPtr> Reconciler::would_create(const job::Spec& spec) const {
  sync::Lock lock(mutex_);
  const std::string name = full_name(spec);
  TITAN_RETURN_IF_ERROR(check_new(spec, name));
  LiveJob job;
  job.record.name = name;
  job.record.spec = spec;
  return view_of(job);
}

void Reconciler::create(job::Spec spec, const v1::JobSpec& stored, const std::string& request_id, uint32_t fingerprint,
                        Done<JobViewPtr> done) {
  LiveJob job;
  job::JobRecord& record = job.record;
  record.name = full_name(spec);
  record.request_id = request_id;
  record.fingerprint = fingerprint;
  record.spec = std::move(spec);
  record.create_time_ns = now_ns();
  record.uid = options_.new_id();
  const std::string bytes = stored.SerializeAsString();

  sync::Lock lock(mutex_);
  if (const auto known = requests_.find(request_id); !request_id.empty() && known != requests_.end()) {
    const JobViewPtr view = published_.find(known->second);
    const uint32_t first = view != nullptr ? view->record->fingerprint : creating_fingerprints_[known->second];
    if (first != fingerprint) {
      return done(rpc::bad_request("REQUEST_ID_REUSED", {{"request_id", "was used for another job; make a new UUID"}}));
    }
    if (view != nullptr) return done(view);
    creating_[known->second].push_back(std::move(done));
    return;
  }
  if (absl::Status bad = check_new(record.spec, record.name); !bad.ok()) return done(bad);
  record.order = next_order_++;
  const std::string uid = record.uid;
  names_[record.name] = uid;
  claim_folder(record);
  if (!request_id.empty()) requests_[request_id] = uid;
  creating_[uid].push_back(std::move(done));
  creating_fingerprints_[uid] = fingerprint;

  // The job joins the queue only once it is durable, so that a full disk can refuse it without a trace.
  Change change;
  job::EventRecord event;
  event.reason = "JobQueued";
  event.message =
      absl::StrCat(counted(record.spec.ranks, record.spec.device + " rank"), ", priority ", record.spec.priority);
  add_event(change, job, std::move(event));
  change.mutations.push_back(store::put(spec_key(uid), bytes));
  job.idle_since = clock_.monotonic();
  put_job(change, job);
  store_.commit({std::move(change.mutations), store::WhenFull::kRefuse},
                [this, uid, job = std::move(job), lines = std::move(change.lines),
                 views = std::move(change.views)](const absl::StatusOr<int64_t>& revision) mutable {
                  if (absl::IsUnavailable(revision.status())) return;  // The store has failed and this process ends.
                  std::vector<Done<JobViewPtr>> waiting;
                  {
                    sync::Lock lock(mutex_);
                    waiting = std::move(creating_[uid]);
                    creating_.erase(uid);
                    creating_fingerprints_.erase(uid);
                    if (revision.ok()) {
                      // At one moment, or who sees it first might be told that it is over.
                      published_.publish(views, *revision);
                      write(lines);
                      jobs_.emplace(uid, std::move(job));
                      request_schedule(/*urgent=*/false);
                    } else {
                      names_.erase(job.record.name);
                      drop_folder(job.record);
                      requests_.erase(job.record.request_id);
                    }
                  }
                  const absl::StatusOr<JobViewPtr> result =
                      revision.ok() ? absl::StatusOr<JobViewPtr>(published_.find(uid)) : revision.status();
                  for (const Done<JobViewPtr>& answer : waiting) answer(result);
                });
}

absl::StatusOr<LiveJob*> Reconciler::live_job(const std::string& uid, absl::string_view verb) {
  const auto it = jobs_.find(uid);
  if (it != jobs_.end()) return &it->second;
  const JobViewPtr view = published_.find(uid);
  if (view == nullptr) return no_such_job(uid);
  return rpc::error(StatusCode::kFailedPrecondition, "JOB_OVER",
                    absl::StrCat("job ", view->record->name, " is ", job::name(view->record->state), ": cannot ", verb),
                    {{"state", std::string(job::name(view->record->state))}});
}

void Reconciler::cancel(const std::string& uid, bool now, Done<JobViewPtr> done) {
  sync::Lock lock(mutex_);
  const JobViewPtr view = published_.find(uid);
  if (view != nullptr && view->record->state == JobState::kCancelled) return done(view);
  absl::StatusOr<LiveJob*> job = live_job(uid, "cancel");
  if (!job.ok()) return done(job.status());
  // A request is refused when the disk is full; what follows from an accepted one is not: hence two transactions.
  store_.commit({{store::put(absl::StrCat("cancel/", uid), now ? "now" : "save")}, store::WhenFull::kRefuse},
                [this, uid, now, done = std::move(done)](const absl::StatusOr<int64_t>& revision) {
                  if (!revision.ok()) return done(revision.status());
                  sync::Lock lock(mutex_);
                  start_cancel(uid, now, done);
                });
}

void Reconciler::start_cancel(const std::string& uid, bool now, Done<JobViewPtr> done) {
  const auto it = jobs_.find(uid);
  if (it == jobs_.end()) {  // It ended meanwhile.
    const JobViewPtr view = published_.find(uid);
    return view == nullptr ? done(no_such_job(uid)) : done(view);
  }
  LiveJob& job = it->second;
  Change change;
  const bool repeated = job.record.cancel_requested;
  job.record.cancel_requested = true;
  job.stop_now = job.stop_now || now;
  job.pending_reason.clear();
  job.pending_message.clear();
  if (!repeated) {
    add_event(change, job, {.reason = "CancelRequested", .message = now ? "without saving" : "saving first"});
  }
  change.mutations.push_back(store::erase(absl::StrCat("cancel/", uid)));
  if (job.attempt) {
    apply(job, JobEvent::kStopRequested);
    put_job(change, job);
    change.then.push_back([this, uid] {
      if (const auto live = jobs_.find(uid); live != jobs_.end()) stop_everywhere(live->second);
    });
  } else {
    apply(job, JobEvent::kStopped);
    end_job(job, change);
  }
  change.then.push_back([this, uid, done = std::move(done)] { done(published_.find(uid)); });
  if (job::is_final(job.record.state)) jobs_.erase(it);
  commit(std::move(change));
  request_schedule(/*urgent=*/true);
}

bool Reconciler::can_save(const std::string& uid) const {
  const absl::StatusOr<v1::JobSpec> spec = stored_spec(uid);
  if (!spec.ok()) return true;  // Its ranks know.
  const auto config = nlohmann::json::parse(spec->config_json(), nullptr, /*allow_exceptions=*/false);
  return !config.is_object() || config.value(nlohmann::json::json_pointer("/checkpoint/enable"), true);
}

void Reconciler::checkpoint(const std::string& uid, Done<JobViewPtr> done) {
  sync::Lock lock(mutex_);
  absl::StatusOr<LiveJob*> found = live_job(uid, "checkpoint");
  if (!found.ok()) return done(found.status());
  LiveJob& job = **found;
  if (!can_save(uid)) {
    return done(rpc::error(StatusCode::kFailedPrecondition, "CHECKPOINTS_DISABLED",
                           absl::StrCat("job ", job.record.name, " has checkpoint.enable = false: it cannot save")));
  }
  if (job.record.state != JobState::kCheckpointing && !apply(job, JobEvent::kCheckpointRequested)) {
    return done(rpc::error(StatusCode::kFailedPrecondition, "JOB_NOT_RUNNING",
                           absl::StrCat("job ", job.record.name, " is ", job::name(job.record.state),
                                        ": only a running job can save a checkpoint"),
                           {{"state", std::string(job::name(job.record.state))}}));
  }
  Change change;
  add_event(
      change, job,
      {.attempt = job.attempt->record.number, .reason = "CheckpointRequested", .message = "at the next step edge"});
  put_job(change, job);
  change.then.push_back([this, uid, done = std::move(done)] {
    if (const auto live = jobs_.find(uid); live != jobs_.end() && live->second.attempt) {
      for (const auto& [node, part] : live->second.attempt->parts) send_checkpoint(live->second, node);
    }
    done(published_.find(uid));
  });
  commit(std::move(change));
}

void Reconciler::profile(const std::string& uid, const std::vector<int>& ranks, int steps, Done<JobViewPtr> done) {
  sync::Lock lock(mutex_);
  absl::StatusOr<LiveJob*> found = live_job(uid, "profile");
  if (!found.ok()) return done(found.status());
  LiveJob& job = **found;
  if (job.record.state != JobState::kRunning && job.record.state != JobState::kCheckpointing) {
    return done(rpc::error(StatusCode::kFailedPrecondition, "JOB_NOT_RUNNING",
                           absl::StrCat("job ", job.record.name, " is ", job::name(job.record.state),
                                        ": only a running job can be profiled"),
                           {{"state", std::string(job::name(job.record.state))}}));
  }
  Change change;
  add_event(change, job,
            {.attempt = job.attempt->record.number,
             .reason = "TraceRequested",
             .message = absl::StrCat(counted(steps, "step"), " of ", ranks.size() == 1 ? "rank " : "ranks ",
                                     absl::StrJoin(ranks, ", "))});
  put_job(change, job);
  change.then.push_back([this, uid, done = std::move(done)] { done(published_.find(uid)); });
  commit(std::move(change));
}

void Reconciler::cordon(const std::string& name, bool cordoned, const std::string& reason, Done<NodeView> done) {
  sync::Lock lock(mutex_);
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr) {
    return done(rpc::error(StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node ", name), {{"node", name}}));
  }
  cluster::Node changed = *node;
  changed.record.cordoned = cordoned;
  changed.record.cordon_reason = cordoned ? reason : "";
  Change change;
  if (node->record.cordoned != cordoned) {
    add_node_event(change, changed, cordoned ? "NodeCordoned" : "NodeUncordoned", reason, "info");
  }
  put_node(change, changed);
  node->record.events = changed.record.events;  // The number is taken, whatever becomes of this transaction.
  store_.commit({std::move(change.mutations), store::WhenFull::kRefuse},
                [this, name, cordoned, changed, lines = std::move(change.lines),
                 done = std::move(done)](const absl::StatusOr<int64_t>& revision) {
                  if (!revision.ok()) return done(revision.status());
                  absl::StatusOr<NodeView> view;
                  {
                    sync::Lock lock(mutex_);
                    cluster::Node* node = nodes_.find(name);
                    node->record.cordoned = cordoned;
                    node->record.cordon_reason = changed.record.cordon_reason;
                    Change again;  // A session that registered meanwhile has written the record as it was before.
                    put_node(again, *node);
                    again.lines = lines;
                    commit(std::move(again));
                    request_schedule(/*urgent=*/true);
                    view = node_view(*node);
                  }
                  done(view);
                });
}

NodeView Reconciler::node_view(const cluster::Node& node) const {
  NodeView view{node, devices_of_strays(node.record.name), {}, {}, refusal_of(node.record.name)};
  if (node.session == nullptr && !view.refusal.empty()) view.node.state = cluster::NodeState::kRefused;
  view.node.session = nullptr;
  for (const auto& [uid, job] : jobs_) {
    if (!job.attempt) continue;
    const auto part = job.attempt->parts.find(node.record.name);
    if (part == job.attempt->parts.end() || part->second.ended) continue;
    view.devices_used += part->second.placement.num_ranks;
    view.jobs.push_back(job.record.name);
  }
  if (const auto strays = strays_.find(node.record.name); strays != strays_.end()) {
    for (const auto& [key, stray] : strays->second) {
      if (stray.unknown) view.unknown.emplace_back(key, stray);
    }
  }
  return view;
}

std::vector<NodeView> Reconciler::nodes() const {
  sync::Lock lock(mutex_);
  std::vector<NodeView> views;
  for (const auto& [name, node] : nodes_.all()) views.push_back(node_view(node));
  add_refused(views);
  return views;
}

absl::StatusOr<NodeView> Reconciler::node(const std::string& name) const {
  sync::Lock lock(mutex_);
  const cluster::Node* node = nodes_.find(name);
  if (node != nullptr) return node_view(*node);
  std::vector<NodeView> refused;
  add_refused(refused);
  for (NodeView& view : refused) {
    if (view.node.record.name == name) return std::move(view);
  }
  return rpc::error(StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node ", name), {{"node", name}});
}

absl::StatusOr<v1::JobSpec> Reconciler::stored_spec(const std::string& uid) const {
  TITAN_ASSIGN_OR_RETURN(const std::optional<store::Record> record, store_.get(spec_key(uid)));
  v1::JobSpec spec;
  if (!record || !spec.ParseFromString(record->value)) {
    return absl::DataLossError(absl::StrCat("the specification of job ", uid, " cannot be read"));
  }
  return spec;
}

bool Reconciler::scheduling() const {
  sync::Lock lock(mutex_);
  return scheduling_;
}

absl::Status Reconciler::send(const std::string& name, const v1::ControllerMessage& message) {
  sync::Lock lock(mutex_);
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr || node->session == nullptr) {
    return rpc::error(StatusCode::kUnavailable, "NODE_UNREACHABLE",
                      absl::StrCat("node ", name, " cannot be reached now"), {{"node", name}});
  }
  node->session->send(message);
  return absl::OkStatus();
}

}  // namespace titan::reconcile
