// Carries out the core's effects in the order in which they were decided: writes, sends, answers and publishes.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/launch.h"
#include "controller/reconcile/encode_command.h"
#include "controller/reconcile/failpoints.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

// Returns the uid of the job for which the change writes an attempt. Empty: it writes none.
std::string attempt_in(const core::Change& change) {
  const std::string prefix = "attempt/";
  for (const store::Mutation& mutation : change.mutations) {
    if (!absl::StartsWith(mutation.key, prefix)) continue;
    return mutation.key.substr(prefix.size(), mutation.key.rfind('/') - prefix.size());
  }
  return "";
}

}  // namespace

void Reconciler::take(core::Input input, Answers& answers) {
  const absl::Duration begin = clock_.monotonic();
  core::Effects effects = core_.step(std::move(input), now());
  if (effects.scheduled) measures_.scheduler_cycle(clock_.monotonic() - begin);
  run(std::move(effects), answers);
}

void Reconciler::run(core::Effects effects, Answers& answers) {
  measures_.kept_logs(effects.kept_log_bytes);
  for (const auto& [id, why] : effects.closes) {
    const auto session = sessions_.find(id);
    if (session != sessions_.end()) session->second->close(why);
  }
  for (const core::NodeViewPtr& view : effects.nodes) nodes_.show(view);
  for (const std::string& name : effects.nodes_gone) nodes_.erase(name);
  for (const auto& [name, at] : effects.beats) nodes_.beat(name, at);
  // Changes get their places in the log first, since sending may lead to the next step.
  for (core::Change& change : effects.changes) write(std::move(change), answers);
  release(effects.now, /*revision=*/0, answers);
  for (core::Comparison& wanted : effects.comparisons) {
    answers.push_back([this, wanted = std::move(wanted)] { compare(wanted); });
  }
}

// Runs without the lock until the result is known.
void Reconciler::compare(const core::Comparison& wanted) {
  const job::Findings& findings = *wanted.findings;
  core::Compared found{wanted.attempt, job::diagnose(findings, wanted.title), findings.stuck};
  Answers answers;
  {
    sync::Lock lock(mutex_);
    take(std::move(found), answers);
  }
  for (const auto& answer : answers) answer();
}

void Reconciler::write(core::Change change, Answers& answers) {
  Pending pending{std::move(change.then), change.token, /*ticket=*/0};
  if (change.mutations.empty() && change.erased_prefixes.empty()) {
    pending_.push_back(std::move(pending));
    return release_waiting(answers);
  }
  const int64_t ticket = pending.ticket = next_ticket_++;
  pending_.push_back(std::move(pending));
  const std::string placed = change.token != 0 ? attempt_in(change) : "";
  store::Transaction transaction{std::move(change.mutations), change.when_full, std::move(change.erased_prefixes)};
  const failpoints::Kinds kinds = failpoints::kinds_of(transaction);
  failpoints::before_write(kinds);
  store_.commit(std::move(transaction), [this, ticket, kinds, placed](const absl::StatusOr<int64_t>& revision) {
    failpoints::after_write(kinds);
    // Nodes get the command under the lock, so the configuration is read before. If it cannot be read, that is reported
    // when the command is sent.
    if (!placed.empty() && revision.ok()) config_of(placed).IgnoreError();
    on_committed(ticket, revision);
  });
}

// Transactions become durable in order. One that a full disk refuses overtakes those that wait for space.
void Reconciler::on_committed(int64_t ticket, const absl::StatusOr<int64_t>& revision) {
  if (absl::IsUnavailable(revision.status())) return;  // The store has failed and this process is about to end.
  Answers answers;
  {
    sync::Lock lock(mutex_);
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const Pending& pending) { return pending.ticket == ticket; });
    Pending pending = std::move(*found);
    pending_.erase(found);
    // Both happen under one lock. Otherwise a client that sees a job could get the answer that there is none.
    if (revision.ok()) release(pending.then, *revision, answers);
    if (pending.token != 0) take(core::Durable{pending.token, revision.status()}, answers);
    release_waiting(answers);
  }
  for (const auto& answer : answers) answer();
}

void Reconciler::release_waiting(Answers& answers) {
  while (!pending_.empty() && pending_.front().ticket == 0) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    release(pending.then, /*revision=*/0, answers);
    if (pending.token != 0) take(core::Durable{pending.token, absl::OkStatus()}, answers);
  }
}

void Reconciler::release(core::Release& what, int64_t revision, Answers& answers) {
  if (!what.views.empty()) {
    published_.publish(what.views, revision);
    // Without a transaction nothing wakes the watchers afterwards: the next tick does.
    published_without_commit_ = published_without_commit_ || revision == 0;
  }
  for (const std::string& uid : what.deleted) published_.erase(uid, revision);
  write(what.lines);
  for (const core::MetricSample& one : what.measures) measure(one);
  if (!what.replies.empty()) failpoints::before_answering();
  for (const core::Reply& reply : what.replies) answer(reply, answers);
  if (!what.sends.empty()) failpoints::before_sending();
  send_all(what.sends, answers);
}

void Reconciler::answer(const core::Reply& reply, Answers& answers) {
  const auto it = waiting_.find(reply.request);
  if (it == waiting_.end()) return;
  Waiting waiting = std::move(it->second);
  waiting_.erase(it);
  const auto finish = [&](auto done, auto result) {
    answers.push_back([done = std::move(done), result = std::move(result)] { done(result); });
  };
  if (waiting.node != nullptr) {
    return finish(std::move(waiting.node), reply.node ? absl::StatusOr<NodeView>(*reply.node) : reply.status);
  }
  if (!reply.status.ok()) return finish(std::move(waiting.job), absl::StatusOr<JobViewPtr>(reply.status));
  JobViewPtr view = reply.deleted != nullptr ? reply.deleted : published_.find(reply.job);
  finish(std::move(waiting.job), view != nullptr ? absl::StatusOr<JobViewPtr>(view) : no_such_job(reply.job));
}

void Reconciler::send_all(const std::vector<core::Send>& sends, Answers& answers) {
  LaunchFiles files;
  std::vector<core::SpecUnreadable> unreadable;
  for (const core::Send& send : sends) {
    const auto* const prepare = std::get_if<core::Prepare>(&send.command);
    if (prepare != nullptr) {
      if (const absl::Status made = make_launch_file(*prepare, files); !made.ok()) {
        unreadable.push_back(
            {prepare->launch->job_uid, prepare->launch->attempt, std::string(made.message()), absl::IsDataLoss(made)});
        continue;
      }
    }
    const auto session = sessions_.find(send.session);
    if (session == sessions_.end()) continue;
    v1::ControllerMessage message = encode(send.command);
    failpoints::before_sending(message);
    message.set_leader_epoch(options_.leader_epoch);
    if (prepare != nullptr) {
      session->second->send(message, files.of(*prepare));
    } else {
      session->second->send(message);
    }
  }
  for (core::SpecUnreadable& one : unreadable) take(std::move(one), answers);
}

absl::Status Reconciler::make_launch_file(const core::Prepare& prepare, LaunchFiles& files) const {
  if (files.launch != prepare.launch.get()) files = {.launch = prepare.launch.get()};
  std::shared_ptr<const std::string>& file = files.of(prepare);
  if (file != nullptr) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(std::string json, launch_json(*prepare.launch, /*with_addresses=*/prepare.leader));
  v1::ControllerMessage message;
  message.mutable_prepare()->set_launch_json(std::move(json));
  file = std::make_shared<const std::string>(message.SerializeAsString());
  return absl::OkStatus();
}

absl::StatusOr<std::string> Reconciler::launch_json(rank_protocol::Launch launch, bool with_addresses) const {
  TITAN_ASSIGN_OR_RETURN(const ConfigCache::Config config, config_of(launch.job_uid));
  launch.config = *config;
  return (with_addresses ? to_json(launch) : to_folded_json(launch)).dump();
}

void Reconciler::measure(const core::MetricSample& one) {
  switch (one.kind) {
    case core::MetricSample::kAttemptEnded:
      return measures_.attempt_ended(one.label);
    case core::MetricSample::kLost:
      return measures_.lost(one.label, one.value);
    case core::MetricSample::kRecovered:
      return measures_.recovered(one.value);
    case core::MetricSample::kCheckpoint:
      return measures_.checkpoint(one.value);
    case core::MetricSample::kCheckpointStall:
      return measures_.checkpoint_stall(one.value);
    case core::MetricSample::kCheckpointFailed:
      return measures_.checkpoint_failed();
    case core::MetricSample::kQueueWait:
      return measures_.queue_wait(absl::Seconds(one.value));
    case core::MetricSample::kNodeRefused:
      return measures_.refused(one.label);
    case core::MetricSample::kLogsDropped:
      return measures_.logs_dropped(one.label, one.value);
  }
}

void Reconciler::write(const std::vector<journal::Line>& lines) const {
  if (options_.journal == nullptr) return;
  for (const journal::Line& line : lines) options_.journal->write(line);
}

}  // namespace titan::reconcile
