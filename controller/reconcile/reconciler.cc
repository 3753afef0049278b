#include "controller/reconcile/reconciler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
#include "controller/reconcile/decode_report.h"
#include "controller/reconcile/failpoints.h"

namespace titan::reconcile {

Reconciler::Reconciler(store::Store& store, const Clock& clock, ReconcilerOptions options, Measures& measures)
    : store_(store),
      clock_(clock),
      options_(std::move(options)),
      measures_(measures),
      published_(store.revision()),
      core_(options_) {}

absl::StatusOr<std::unique_ptr<Reconciler>> Reconciler::open(store::Store& store, const Clock& clock,
                                                             ReconcilerOptions options, Measures& measures) {
  std::unique_ptr<Reconciler> reconciler(new Reconciler(store, clock, std::move(options), measures));
  TITAN_RETURN_IF_ERROR(reconciler->load());
  reconciler->subscription_ = store.subscribe([raw = reconciler.get()](int64_t) { raw->on_durable(); });
  return reconciler;
}

absl::Status Reconciler::load() {
  std::vector<store::Record> records;
  for (const std::string& prefix : core::Core::loaded_prefixes()) {
    TITAN_ASSIGN_OR_RETURN(std::vector<store::Record> found, store::scan_all(store_, prefix));
    std::move(found.begin(), found.end(), std::back_inserter(records));
  }
  std::vector<std::string> lost;
  for (const store::Quarantined& record : store_.quarantined()) {
    if (record.lost) lost.push_back(record.key);
  }
  sync::Lock lock(mutex_);
  core::Effects effects = core_.load(records, lost, now());
  for (const auto& [record, why] : effects.set_aside) store_.set_aside(record, why);
  for (const JobViewPtr& view : std::exchange(effects.now.views, {})) published_.load(view);
  Answers answers;  // Nobody waits yet.
  run(std::move(effects), answers);
  return absl::OkStatus();
}

// --- clients ---

template <typename Request>
void Reconciler::ask(Request request, Done<JobViewPtr> job, Done<NodeView> node) {
  Answers answers;
  {
    sync::Lock lock(mutex_);
    request.request = next_request_++;
    waiting_[request.request] = {std::move(job), std::move(node)};
    take(std::move(request), answers);
    failpoints::after_asking();
  }
  for (const auto& answer : answers) answer();
}

void Reconciler::create(core::CreateJob request, Done<JobViewPtr> done) {
  request.uid = options_.new_id();
  ask(std::move(request), std::move(done), nullptr);
}

void Reconciler::update(core::UpdateJob request, Done<JobViewPtr> done) {
  ask(std::move(request), std::move(done), nullptr);
}

void Reconciler::cancel(const std::string& uid, bool now, Done<JobViewPtr> done, const std::string& actor,
                        const std::string& request_id) {
  ask(core::CancelJob{0, uid, now, actor, request_id}, std::move(done), nullptr);
}

void Reconciler::checkpoint(const std::string& uid, Done<JobViewPtr> done, const std::string& actor) {
  ask(core::CheckpointJob{0, uid, actor}, std::move(done), nullptr);
}

void Reconciler::profile(const std::string& uid, const std::vector<int>& ranks, int steps, Done<JobViewPtr> done,
                         const std::string& actor) {
  ask(core::ProfileJob{0, uid, ranks, steps, actor}, std::move(done), nullptr);
}

void Reconciler::remove(const std::string& uid, Done<JobViewPtr> done, const std::string& actor) {
  ask(core::DeleteJob{0, uid, actor}, std::move(done), nullptr);
}

void Reconciler::cordon(const std::string& node, bool cordoned, const std::string& reason, Done<NodeView> done,
                        const std::string& actor) {
  ask(core::CordonNode{0, node, cordoned, reason, actor}, nullptr, std::move(done));
}

void Reconciler::drain(const std::string& node, const std::string& reason, Done<NodeView> done,
                       const std::string& actor) {
  ask(core::DrainNode{0, node, reason, actor}, nullptr, std::move(done));
}

void Reconciler::delete_node(const std::string& node, Done<NodeView> done, const std::string& actor, bool force) {
  ask(core::DeleteNode{0, node, actor, force}, nullptr, std::move(done));
}

void Reconciler::stop_unknown(const std::string& node, const std::string& uid, absl::Duration grace,
                              Done<NodeView> done, const std::string& actor) {
  ask(core::StopUnknown{0, node, uid, grace, actor}, nullptr, std::move(done));
}

// --- workers ---

absl::Status Reconciler::open_session(const v1::Register& hello, const std::shared_ptr<Session>& session,
                                      const std::string& peer) {
  failpoints::before_opening();
  note_later_leader(hello.node(), hello.leader_epoch());
  core::OpenSession opening{.hello = decode(hello), .peer = peer};
  Answers answers;
  absl::Status refused;
  {
    sync::Lock lock(mutex_);
    const core::SessionId id = opening.session = next_session_++;
    sessions_[id] = session;
    session_ids_[session.get()] = id;
    core::Effects effects = core_.step(std::move(opening), now());
    refused = effects.refused;
    if (!refused.ok()) {
      sessions_.erase(id);
      session_ids_.erase(session.get());
    }
    run(std::move(effects), answers);
  }
  for (const auto& answer : answers) answer();
  return refused;
}

void Reconciler::on_message(const std::string& node, const std::shared_ptr<Session>& session,
                            const v1::WorkerMessage& message) {
  failpoints::before_hearing(message);
  note_later_leader(node, message.attempt().leader_epoch());
  if (message.attempt().error_reason() == "STALE_LEADER") return;  // It refused this leader, not the attempt.
  core::NodeReport report = decode(message);  // Decoded without the lock, because a rank's events are lines of JSON.
  Answers answers;
  {
    sync::Lock lock(mutex_);
    const auto id = session_ids_.find(session.get());
    if (id == session_ids_.end()) return;
    take(core::MessageReceived{node, id->second, std::move(report)}, answers);
  }
  for (const auto& answer : answers) answer();
}

// The store would refuse the next write anyway. Until that write, nodes would still obey a former leader.
void Reconciler::note_later_leader(const std::string& node, int64_t epoch) const {
  if (options_.leader_epoch == 0 || epoch <= options_.leader_epoch) return;
  const absl::Status why = absl::FailedPreconditionError(
      absl::StrCat("node ", node, " follows a leader with epoch ", epoch, ", but this controller's epoch is ",
                   options_.leader_epoch, ": another controller leads"));
  journal::Line line{journal::Level::kError, "LeadershipLost", {}};
  write({line.add("node", node).add("message", std::string(why.message()))});
  if (options_.on_superseded) options_.on_superseded(why);
}

void Reconciler::close_session(const std::string& node, const Session* session) {
  Answers answers;
  {
    sync::Lock lock(mutex_);
    const auto id = session_ids_.find(session);
    if (id == session_ids_.end()) return;
    take(core::CloseSession{node, id->second}, answers);
    sessions_.erase(id->second);
    session_ids_.erase(id);
  }
  for (const auto& answer : answers) answer();
}

absl::Status Reconciler::send(const std::string& name, const v1::ControllerMessage& message) {
  sync::Lock lock(mutex_);
  const auto session = sessions_.find(core_.session_of(name));
  if (session == sessions_.end()) {
    return rpc::error(absl::StatusCode::kUnavailable, "NODE_UNREACHABLE",
                      absl::StrCat("node ", name, " cannot be reached now"), {{"node", name}});
  }
  v1::ControllerMessage sent = message;
  sent.set_leader_epoch(options_.leader_epoch);
  session->second->send(sent);
  return absl::OkStatus();
}

void Reconciler::tick() {
  Answers answers;
  bool wake = false;
  {
    sync::Lock lock(mutex_);
    take(core::Tick{}, answers);
    wake = std::exchange(published_without_commit_, false);
  }
  for (const auto& answer : answers) answer();
  if (wake) published_.wakers().wake_all();  // Without the lock: watchers may call the reconciler.
}

void Reconciler::on_durable() { published_.wakers().wake_all(); }

// --- reads ---

absl::StatusOr<JobViewPtr> Reconciler::would_create(const job::SchedulingSpec& spec) const {
  sync::Lock lock(mutex_);
  return core_.would_create(spec);
}

absl::StatusOr<JobViewPtr> Reconciler::would_update(const core::UpdateJob& request) const {
  sync::Lock lock(mutex_);
  return core_.would_update(request);
}

std::optional<scheduler::Misfit> Reconciler::misfit(const job::SchedulingSpec& spec) const {
  sync::Lock lock(mutex_);
  return core_.misfit(spec);
}

std::vector<NodeView> Reconciler::decided_nodes() const {
  sync::Lock lock(mutex_);
  return core_.nodes();
}

bool Reconciler::scheduling() const {
  sync::Lock lock(mutex_);
  return core_.scheduling();
}

absl::StatusOr<v1::JobSpec> Reconciler::stored_spec(const std::string& uid) const {
  TITAN_ASSIGN_OR_RETURN(const std::optional<store::Record> record, store_.get(core::spec_key(uid)));
  v1::JobSpec spec;
  if (!record || !spec.ParseFromString(record->value)) {
    return absl::DataLossError(absl::StrCat("the specification of job ", uid, " cannot be read"));
  }
  return spec;
}

absl::StatusOr<job::DiagnosisRecord> Reconciler::diagnosis(const std::string& uid, int attempt) const {
  TITAN_ASSIGN_OR_RETURN(const std::optional<store::Record> record, store_.get(core::diagnosis_key(uid, attempt)));
  if (!record) return absl::NotFoundError(absl::StrCat("no diagnosis of attempt ", attempt, " is kept"));
  return job::decode<job::DiagnosisRecord>(record->value);
}

// Returns the configuration of a job that is to be launched. It is parsed once, since every attempt uses it.
absl::StatusOr<ConfigCache::Config> Reconciler::config_of(const std::string& uid) const {
  if (ConfigCache::Config known = configs_.find(uid); known != nullptr) return known;
  TITAN_ASSIGN_OR_RETURN(const v1::JobSpec spec, stored_spec(uid));
  return configs_.add(uid, spec.config_json());
}

}  // namespace titan::reconcile
