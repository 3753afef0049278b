// An attempt's life: placed, prepared, started, ended; and what follows its end.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rank_protocol/launch.h"
#include "common/text/counted.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

using job::Cause;
using job::JobEvent;
using job::JobState;

std::string where(const std::vector<job::Placement>& placements) {
  return absl::StrJoin(placements, ", ", [](std::string* out, const job::Placement& placement) {
    absl::StrAppend(out, counted(placement.num_ranks, "rank"), " on ", placement.node);
  });
}

bool left_well(const job::RankExit& exit) {
  return exit.signal == 0 &&
         (exit.exit_code == rank_protocol::kExitFinished || exit.exit_code == rank_protocol::kExitStopped);
}

bool has_failed(const LiveAttempt& attempt) {
  if (!attempt.refusals.empty()) return true;
  for (const auto& [node, part] : attempt.parts) {
    if (part.lost) return true;
  }
  return !std::all_of(attempt.record.exits.begin(), attempt.record.exits.end(), left_well);
}

// Written into the dump folder by the leader, read there by all. The same for every controller that continues the
// attempt, since some of its nodes may have been prepared by a predecessor.
std::string token_of(const LiveJob& job) { return absl::StrCat(job.record.uid, "-", job.attempt->record.number); }

void identify(v1::AttemptId* id, const LiveJob& job) {
  id->set_job_uid(job.record.uid);
  id->set_number(job.attempt->record.number);
}

}  // namespace

// Fixed at the first placement for the job's whole life, since results depend on it bit for bit.
void Reconciler::resolve_threads(LiveJob& job, const std::vector<job::Placement>& placements) {
  if (job.record.threads_per_rank > 0) return;
  job.record.threads_per_rank = job.record.spec.threads_per_rank;
  if (job.record.threads_per_rank > 0) return;
  // Nodes with one address are one machine: several workers on it share its cores.
  std::map<std::string, std::pair<int, int>> cores_and_ranks;
  for (const job::Placement& placement : placements) {
    const cluster::Node* node = nodes_.find(placement.node);
    if (node == nullptr) continue;
    auto& [cores, ranks] = cores_and_ranks[node->record.address];
    cores = std::max(cores, node->record.cpu_cores);
    ranks += placement.num_ranks;
  }
  int threads = 1 << 16;
  for (const auto& [address, machine] : cores_and_ranks) threads = std::min(threads, machine.first / machine.second);
  job.record.threads_per_rank = std::max(1, threads);
}

void Reconciler::start_attempt(LiveJob& job, std::vector<job::Placement> placements) {
  if (!apply(job, JobEvent::kPlaced)) return;
  resolve_threads(job, placements);
  LiveAttempt attempt;
  attempt.record.number = ++job.record.attempts;
  attempt.record.placements = std::move(placements);
  attempt.record.start_time_ns = now_ns();
  attempt.record.phase_seconds = std::exchange(job.lost_seconds, {});
  attempt.placed_at = clock_.monotonic();
  for (const job::Placement& placement : attempt.record.placements) attempt.parts[placement.node].placement = placement;
  job.attempt = std::move(attempt);
  job.reserved.clear();
  job.pending_reason.clear();
  job.pending_message.clear();
  if (job.record.attempts == 1 && job.idle_since) measures_.queue_wait(clock_.monotonic() - *job.idle_since);
  note_phase(job, "place", job.idle_since);
  job.idle_since.reset();

  Change change;
  add_event(
      change, job,
      {.attempt = job.record.attempts, .reason = "AttemptPlaced", .message = where(job.attempt->record.placements)});
  put_attempt(change, job, job.attempt->record);
  put_job(change, job);
  change.then.push_back([this, uid = job.record.uid, number = job.record.attempts] {
    const auto live = jobs_.find(uid);
    if (live == jobs_.end() || !live->second.attempt || live->second.attempt->record.number != number) return;
    std::vector<std::string> nodes;
    for (const auto& [node, part] : live->second.attempt->parts) nodes.push_back(node);
    send_prepare(live->second, nodes);
  });
  commit(std::move(change));
}

absl::StatusOr<std::string> Reconciler::launch_json(const LiveJob& job) const {
  const absl::StatusOr<v1::JobSpec> spec = stored_spec(job.record.uid);
  if (!spec.ok()) return spec.status();
  rank_protocol::Launch launch;
  launch.job = job.record.name;
  launch.job_uid = job.record.uid;
  launch.attempt = job.attempt->record.number;
  launch.config = nlohmann::json::parse(spec->config_json(), nullptr, /*allow_exceptions=*/false);
  launch.threads_per_rank = job.record.threads_per_rank;
  if (job.progress.committed_step > 0) launch.committed_step = job.progress.committed_step;
  launch.folder_id = job.record.folder_id;
  for (const job::Placement& placement : job.attempt->record.placements) {
    const cluster::Node* node = nodes_.find(placement.node);
    for (int local = 0; local < placement.num_ranks; ++local) {
      launch.ranks.push_back(
          {placement.first_rank + local, local, placement.node, node == nullptr ? "" : node->record.address});
    }
  }
  return rank_protocol::to_json(launch).dump();
}

void Reconciler::send_prepare(LiveJob& job, const std::vector<std::string>& nodes) {
  LiveAttempt& attempt = *job.attempt;
  if (attempt.failing || job.record.state == JobState::kStopping) return;
  const absl::StatusOr<std::string> launch = launch_json(job);
  if (!launch.ok()) {  // Its record is damaged: no attempt can start.
    attempt.refusals.push_back({attempt.leader(), "SPEC_UNREADABLE", std::string(launch.status().message())});
    for (auto& [other, part] : attempt.parts) part.ended = part.ended || !part.prepared;
    return conclude(job, {}, absl::ZeroDuration());
  }
  for (const std::string& name : nodes) {
    cluster::Node* node = nodes_.find(name);
    if (node == nullptr || node->session == nullptr) continue;
    const NodePart& part = attempt.parts.at(name);
    v1::ControllerMessage message;
    v1::Prepare* prepare = message.mutable_prepare();
    identify(prepare->mutable_id(), job);
    prepare->set_leader(name == attempt.leader());
    prepare->set_launch_json(*launch);
    for (int i = 0; i < part.placement.num_ranks; ++i) prepare->add_ranks(part.placement.first_rank + i);
    prepare->set_dump_folder(job.record.spec.dump_folder);
    prepare->set_token(token_of(job));
    prepare->set_folder_id(job.record.folder_id);
    prepare->set_orphan_timeout_seconds(job.record.spec.restart.orphan_timeout_seconds);
    node->session->send(message);
  }
}

void Reconciler::send_start(LiveJob& job, const std::string& name) {
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr || node->session == nullptr) return;
  v1::ControllerMessage message;
  identify(message.mutable_start()->mutable_id(), job);
  message.mutable_start()->set_store_host(job.attempt->record.store_host);
  message.mutable_start()->set_store_port(job.attempt->record.store_port);
  node->session->send(message);
}

void Reconciler::send_checkpoint(LiveJob& job, const std::string& name) {
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr || node->session == nullptr) return;
  v1::ControllerMessage message;
  identify(message.mutable_checkpoint()->mutable_id(), job);
  node->session->send(message);
}

void Reconciler::send_stop(LiveJob& job, const std::string& name) {
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr || node->session == nullptr) return;
  const LiveAttempt& attempt = *job.attempt;
  const bool save = !attempt.failing && !job.stop_now && attempt.start_sent;
  v1::ControllerMessage message;
  v1::Stop* stop = message.mutable_stop();
  identify(stop->mutable_id(), job);
  stop->set_save(save);
  stop->set_grace_milliseconds(save ? static_cast<int64_t>(job.record.spec.restart.stop_grace_seconds * 1000) : 0);
  stop->set_reason(job.record.cancel_requested ? "CANCELLED" : attempt.failing ? "ATTEMPT_FAILED" : "NODE_DRAINED");
  node->session->send(message);
}

void Reconciler::stop_everywhere(LiveJob& job) {
  if (!job.attempt) return;
  for (const auto& [node, part] : job.attempt->parts) {
    if (!part.ended) send_stop(job, node);
  }
}

// Phase two: every node has its folder and shim, and the leader its port.
void Reconciler::start_when_prepared(LiveJob& job, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  if (attempt.start_sent || attempt.failing || !attempt.all(&NodePart::prepared) || attempt.record.store_port == 0)
    return;
  if (job.record.state == JobState::kStopping) return;
  apply(job, JobEvent::kPrepared);
  const cluster::Node* leader = nodes_.find(attempt.leader());
  attempt.record.store_host = leader == nullptr ? "" : leader->record.address;
  attempt.start_sent = true;
  for (const auto& [node, part] : attempt.parts) send_start(job, node);
  journal::Line& line = change.lines.emplace_back(journal::Line{journal::Level::kInfo, "AttemptStarted", {}});
  line.add("job", job.record.name).add("uid", job.record.uid).add("attempt", absl::StrCat(attempt.record.number));
  put_attempt(change, job, attempt.record);
  put_job(change, job);
}

void Reconciler::note_phase(LiveJob& job, const std::string& phase, std::optional<absl::Duration> since) {
  if (!since || !job.attempt) return;
  const double seconds = absl::ToDoubleSeconds(clock_.monotonic() - *since);
  job.attempt->record.phase_seconds[phase] = seconds;
  if (job.attempt->record.number > 1) measures_.lost(phase, seconds);
}

void Reconciler::note_first_step(LiveJob& job, Change& change) {
  if (!apply(job, JobEvent::kFirstStep)) return;
  LiveAttempt& attempt = *job.attempt;
  attempt.record.first_step_time_ns = now_ns();
  if (job.record.start_time_ns == 0) job.record.start_time_ns = attempt.record.first_step_time_ns;
  add_event(change, job,
            {.attempt = attempt.record.number,
             .reason = "AttemptRunning",
             .message = absl::StrCat("training from step ", attempt.record.resumed_step)});
  put_attempt(change, job, attempt.record);
  put_job(change, job);
}

void Reconciler::take_progress(LiveJob& job, int64_t step, int64_t commit, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  attempt.record.last_step = std::max(attempt.record.last_step, step);
  if (!job::note_progress(job.record.history, step, commit) || attempt.recovered) return;
  attempt.recovered = true;
  if (attempt.record.number == 1) return;
  note_phase(job, "replay", attempt.loaded_at);
  double total = 0;
  for (const auto& [phase, seconds] : attempt.record.phase_seconds) total += seconds;
  measures_.recovered(total);
  put_attempt(change, job, attempt.record);
  show(change, job);
}

// The tail of everything that may end an attempt: stop what is left once something failed, go on once nothing is left.
void Reconciler::conclude(LiveJob& job, Change change, absl::Duration since_failure) {
  if (!job.attempt->failing && has_failed(*job.attempt)) begin_failure(job, change, since_failure);
  if (!job.attempt->all(&NodePart::ended)) return commit(std::move(change));
  finish_attempt(job, change);
  // Why the job waits is found at once, and is gone when what is written now becomes visible: it is looked for again.
  change.then.push_back([this] { schedule_requested_ = true; });
  const std::string uid = job.record.uid;
  const bool over = job::is_final(job.record.state);
  commit(std::move(change));
  if (over) jobs_.erase(uid);
  request_schedule(/*urgent=*/true);
}

void Reconciler::begin_failure(LiveJob& job, Change& change, absl::Duration since_failure) {
  LiveAttempt& attempt = *job.attempt;
  attempt.failing = true;
  attempt.stop_time_ns = now_ns();
  attempt.failed_at = clock_.monotonic();
  job.lost_seconds = {{"detect", absl::ToDoubleSeconds(since_failure)}};
  // At once, not when durable: the attempt is over whatever the store says, and every millisecond is the user's.
  stop_everywhere(job);
  apply(job, JobEvent::kAttemptFailed);
  put_job(change, job);
}

void Reconciler::finish_attempt(LiveJob& job, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  job::EndFacts facts;
  facts.exits = attempt.record.exits;
  facts.errors = attempt.errors;
  facts.refusals = attempt.refusals;
  facts.cancelled = job.record.cancel_requested;
  facts.stop_time_ns = attempt.stop_time_ns;
  facts.num_ranks = job.record.spec.ranks;
  facts.hung = hung_ranks(job);
  facts.newer_attempt = attempt.newer_attempt;
  job.record.attempts = std::max(job.record.attempts, attempt.newer_attempt);
  for (const auto& [node, part] : attempt.parts) {
    if (part.lost) facts.lost_nodes.push_back(node);
    if (!part.lost) job.reserved[node] = part.placement.num_ranks;
  }
  const job::AttemptEnd end = job::classify(facts);
  job::AttemptRecord record = std::move(attempt.record);
  record.end_time_ns = now_ns();
  record.end_cause = std::string(job::name(end.cause));
  record.end_message = end.message;
  std::sort(record.exits.begin(), record.exits.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (attempt.failed_at) job.lost_seconds["stop"] = absl::ToDoubleSeconds(clock_.monotonic() - *attempt.failed_at);
  if (end.cause != Cause::kFinished && end.cause != Cause::kCancelled) {
    for (const auto& [phase, seconds] : job.lost_seconds) measures_.lost(phase, seconds);
  }
  measures_.attempt_ended(record.end_cause);
  const AttemptKey key{job.record.uid, record.number};
  for (const auto& [node, part] : attempt.parts) {
    if (!part.lost) change.then.push_back([this, key, node = node] { forget(key, node); });
  }
  // An attempt that never loaded stands where the job stood.
  const int64_t step = std::max(record.last_step, attempt.loaded ? 0 : job.record.history.best_step);
  if (record.last_step > 0) job.progress.step = record.last_step;
  put_progress(change, job);
  job.past.push_back(std::make_shared<const job::AttemptRecord>(record));
  job.attempt.reset();
  job.idle_since = clock_.monotonic();

  const bool well = end.cause == Cause::kFinished || end.cause == Cause::kCancelled;
  add_event(change, job,
            {.attempt = record.number,
             .reason = "AttemptEnded",
             .message = absl::StrCat(record.end_cause, ": ", record.end_message),
             .severity = well ? "info" : "warning"});
  put_attempt(change, job, record);
  if (end.cause == Cause::kFinished) {
    apply(job, JobEvent::kPrepared);  // Only a job that ended before its start was heard of is not beyond this.
    apply(job, JobEvent::kFinished);
    end_job(job, change);
  } else if (end.cause == Cause::kCancelled) {
    if (!apply(job, JobEvent::kStopped)) {
      apply(job, JobEvent::kAttemptFailed);
      apply(job, JobEvent::kStopped);
    }
    end_job(job, change);
  } else {
    retry_or_fail(job, end, step, change);
  }
}

void Reconciler::retry_or_fail(LiveJob& job, const job::AttemptEnd& end, int64_t step, Change& change) {
  apply(job, JobEvent::kAttemptFailed);  // Already so when its failure was noticed before its end.
  avoid_node(job, end);
  const job::Verdict verdict = job::decide(job.record.spec.restart, job.record.history, end, step, options_.jitter());
  if (!verdict.restart) {
    job.record.failure_reason = verdict.failure_reason;
    job.record.failure_message = verdict.failure_message;
    apply(job, JobEvent::kGaveUp);
    return end_job(job, change);
  }
  job.restart_at = clock_.monotonic() + absl::Seconds(verdict.delay_seconds);
  journal::Line& line = change.lines.emplace_back(journal::Line{journal::Level::kWarning, "RestartDecided", {}});
  line.add("job", job.record.name)
      .add("uid", job.record.uid)
      .add("delay_s", absl::StrCat(verdict.delay_seconds))
      .add("without_progress", absl::StrCat(job.record.history.without_progress))
      .add("cause", std::string(job::name(end.cause)))
      .add("message", end.message);
  if (verdict.delay_seconds > 0) {
    job.pending_reason = "BACKOFF";
    job.pending_message =
        absl::StrCat("next attempt in ", absl::FormatDuration(absl::Seconds(verdict.delay_seconds)), " after ",
                     counted(job.record.history.without_progress, "restart"), " without progress");
  }
  put_job(change, job);
}

void Reconciler::end_job(LiveJob& job, Change& change) {
  job.record.end_time_ns = now_ns();
  job.reserved.clear();
  job.pending_reason.clear();
  job.pending_message.clear();
  drop_folder(job.record);
  job::EventRecord event;
  switch (job.record.state) {
    case JobState::kSucceeded:
      event.reason = "JobSucceeded";
      event.message = absl::StrCat("finished at step ", job.record.history.best_step);
      break;
    case JobState::kCancelled:
      event.reason = "JobCancelled";
      event.message = absl::StrCat("at step ", job.record.history.best_step);
      break;
    default:
      event.reason = "JobFailed";
      event.message = absl::StrCat(job.record.failure_reason, ": ", job.record.failure_message);
      event.severity = "error";
  }
  add_event(change, job, std::move(event));
  drop_cursors(change, job.record.uid);
  put_job(change, job);
}

void Reconciler::drop_cursors(Change& change, const std::string& uid) {
  for (auto it = cursors_.lower_bound({uid, 0, 0}); it != cursors_.end() && std::get<0>(it->first) == uid;) {
    change.mutations.push_back(store::erase(cursor_key(uid, std::get<1>(it->first), std::get<2>(it->first))));
    it = cursors_.erase(it);
  }
}

void Reconciler::forget(const AttemptKey& key, const std::string& name) {
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr || node->session == nullptr) return;  // Said again when its next session shows the attempt.
  v1::ControllerMessage message;
  message.mutable_forget()->mutable_id()->set_job_uid(key.first);
  message.mutable_forget()->mutable_id()->set_number(key.second);
  node->session->send(message);
}

}  // namespace titan::reconcile
