// Commands to nodes about an attempt. Every command may be sent twice, and is repeated to a node's next session.

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobState;

constexpr size_t kMaxCauseLength = 1000;  // Bytes of the message of the previous attempt's end.

// Returns the token that the leader writes into the dump folder and all nodes read there. It is the same for every
// controller process that continues the attempt, since an earlier one may have prepared some of the nodes.
std::string token_of(const LiveJob& job) { return absl::StrCat(job.record.uid, "-", job.attempt->record.number); }

std::string reason_to_stop(const LiveJob& job) {
  if (job.stops()) return job.record.intent.cause;
  return job.attempt->failing ? "ATTEMPT_FAILED" : "NODE_DRAINED";
}

std::shared_ptr<const rank_protocol::Launch> launch_of(const NodeTable& nodes, const LiveJob& job) {
  auto launch = std::make_shared<rank_protocol::Launch>();
  launch->job = job.record.name;
  launch->job_uid = job.record.uid;
  launch->attempt = job.attempt->record.number;
  launch->threads_per_rank = job.record.threads_per_rank;
  if (job.progress.committed_step > 0) launch->committed_step = job.progress.committed_step;
  launch->folder_id = job.record.folder_id;
  if (!job.past.empty()) {
    launch->previous_end_cause = job.past.back()->end_cause;
    launch->previous_end_message = text::shortened(job.past.back()->end_message, kMaxCauseLength);
  }
  for (const job::Placement& placement : job.attempt->record.placements) {
    const Node* node = nodes.find(placement.node);
    for (int local = 0; local < placement.num_ranks; ++local) {
      launch->ranks.push_back(
          {placement.first_rank + local, local, placement.node, node == nullptr ? "" : node->record.address});
    }
  }
  return launch;
}

}  // namespace

void send_prepare(Step& step, LiveJob& job, const std::vector<std::string>& nodes) {
  LiveAttempt& attempt = *job.attempt;
  if (attempt.failing || job.record.state == JobState::kStopping) return;
  const std::shared_ptr<const rank_protocol::Launch> launch = launch_of(step.state.nodes, job);
  for (const std::string& name : nodes) {
    if (session_of(step.state.nodes, name) == 0) continue;
    const NodePart& part = attempt.parts.at(name);
    Prepare prepare{.attempt = job.key(), .leader = name == attempt.leader(), .devices = part.placement.devices};
    for (int i = 0; i < part.placement.num_ranks; ++i) prepare.ranks.push_back(part.placement.first_rank + i);
    prepare.dump_folder = job.record.spec.dump_folder;
    prepare.token = token_of(job);
    prepare.folder_id = job.record.folder_id;
    prepare.run_as = job.record.run_as;
    prepare.run_as_local = job.record.run_as_local;
    prepare.deadline = prepare_time(step.options, step.now, attempt);
    prepare.orphan_timeout_seconds = job.record.spec.restart.orphan_timeout_seconds;
    prepare.launch = launch;
    step.send(name, std::move(prepare));
  }
}

// This attempt cannot start. If the record is lost, no other can either.
void take(Step& step, const SpecUnreadable& input) {
  LiveJob* live = step.state.jobs.find(input.uid);
  if (live == nullptr || !live->attempt) return;
  LiveAttempt& attempt = *live->attempt;
  if (attempt.record.number != input.attempt || attempt.failing) return;
  Change change;
  add_refusal(*live, {"", input.lost ? "SPEC_UNREADABLE" : "SPEC_NOT_READ", input.message}, change);
  touch_nodes_of(step, *live);
  for (auto& [node, part] : attempt.parts) part.ended = part.ended || !part.prepared;
  conclude(step, *live, std::move(change), absl::ZeroDuration());
}

void send_start(Step& step, LiveJob& job, const std::string& name) {
  if (job.attempt->failing || job.record.state == JobState::kStopping) return;
  const job::AttemptRecord& attempt = job.attempt->record;
  step.send(name, Start{job.key(), attempt.store_host, attempt.store_port});
}

void send_checkpoint(Step& step, LiveJob& job, const std::string& name) { step.send(name, Checkpoint{job.key()}); }

void send_stop(Step& step, LiveJob& job, const std::string& name) {
  if (session_of(step.state.nodes, name) == 0) return;  // It gets the command with its next session.
  const LiveAttempt& attempt = *job.attempt;
  Stop stop{.attempt = job.key(), .save = !attempt.failing && job.record.intent.save && attempt.start_sent};
  add_stop_times(step.now, stop, job, stop_deadline(step.now, job, job.attempt->parts.at(name)));
  stop.reason = reason_to_stop(job);
  for (const int rank : attempt.record.named_ranks) {
    if (attempt.parts.at(name).holds(rank)) stop.named_ranks.push_back(rank);
  }
  step.send(name, std::move(stop));
}

void stop_everywhere(Step& step, LiveJob& job) {
  if (!job.attempt) return;
  for (const auto& [node, part] : job.attempt->parts) {
    if (!part.ended) send_stop(step, job, node);
  }
}

// A node without a session gets it when its next session reports the attempt.
std::optional<Send> forget(const NodeTable& nodes, const AttemptKey& key, const std::string& name) {
  const SessionId session = session_of(nodes, name);
  if (session == 0) return std::nullopt;
  return Send{session, Forget{key}};
}

}  // namespace titan::core
