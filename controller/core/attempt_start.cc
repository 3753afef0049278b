// How an attempt begins: it is placed, its nodes prepare, and its ranks start once all of them have.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobEvent;
using job::JobState;

std::string where(const std::vector<job::Placement>& placements) {
  return absl::StrJoin(placements, ", ", [](std::string* out, const job::Placement& placement) {
    absl::StrAppend(out, counted(placement.num_ranks, "rank"), " on ", placement.node);
  });
}

// The number is fixed at the first placement for the job's whole life, since results depend on it bit for bit.
void resolve_threads(NodeTable& nodes, LiveJob& job, const std::vector<job::Placement>& placements) {
  if (job.record.threads_per_rank > 0) return;
  job.record.threads_per_rank = job.record.spec.threads_per_rank;
  if (job.record.threads_per_rank > 0) return;
  // Nodes with one address are one machine: several workers on it share its cores.
  std::map<std::string, std::pair<int, int>> cores_and_ranks;
  for (const job::Placement& placement : placements) {
    const Node* node = nodes.find(placement.node);
    if (node == nullptr) continue;
    auto& [cores, ranks] = cores_and_ranks[node->record.address];
    cores = std::max(cores, node->record.cpu_cores);
    ranks += placement.num_ranks;
  }
  int threads = 1 << 16;
  for (const auto& [address, machine] : cores_and_ranks) threads = std::min(threads, machine.first / machine.second);
  job.record.threads_per_rank = std::max(1, threads);
}

}  // namespace

void start_attempt(Step& step, LiveJob& job, std::vector<job::Placement> placements) {
  if (!apply(job, JobEvent::kPlaced)) return step.state.queue.leave(job.record.uid);
  if (job.record.placed_time_ns == 0) job.record.placed_time_ns = step.now.wall_ns();
  note_time_limit(step.now, job);
  resolve_threads(step.state.nodes, job, placements);
  LiveAttempt attempt;
  attempt.record.number = ++job.record.attempts;
  attempt.record.placements = std::move(placements);
  attempt.record.ranks = job.record.spec.ranks;
  attempt.record.mesh = job.record.spec.mesh;
  attempt.record.start_time_ns = step.now.wall_ns();
  attempt.record.phase_seconds = std::exchange(job.lost_seconds, {});
  attempt.placed_at = step.now.monotonic;
  attempt.prepare_by = step.now.monotonic + step.options.prepare_timeout;
  for (const job::Placement& placement : attempt.record.placements) attempt.parts[placement.node].placement = placement;
  set_attempt(step, job, std::move(attempt));
  job.record.reserved.clear();
  job.held.clear();
  step.state.queue.place(job.record.uid);
  job.clear_pending();
  if (job.record.attempts == 1 && job.idle_since) {
    step.measure(MetricSample::kQueueWait, absl::ToDoubleSeconds(step.now.monotonic - *job.idle_since));
  }
  note_phase(step, job, "place", job.idle_since);
  job.idle_since.reset();

  Change change;
  add_event(
      step, change, job,
      {.attempt = job.record.attempts, .reason = "AttemptPlaced", .message = where(job.attempt->record.placements)});
  put_attempt(change, job, job.attempt->record);
  put_job(change, job);
  step.expect(change, SendCommand{job.key(), CommandKind::kPrepare, job.attempt->nodes()});
  step.commit(std::move(change));
}

void set_attempt(Step& step, LiveJob& job, LiveAttempt attempt) {
  const std::string& uid = job.record.uid;
  for (auto& [node, part] : attempt.parts) {
    step.state.placed.add(node, uid);
    part.devices =
        step.state.queue.claim(uid, node, part.placement.devices, part.placement.num_ranks, expected_end(job));
  }
  job.attempt = std::move(attempt);
  touch_nodes_of(step, job);
}

void drop_attempt(Step& step, LiveJob& job) {
  touch_nodes_of(step, job);
  for (const auto& [node, part] : job.attempt->parts) step.state.placed.remove(node, job.record.uid);
  job.attempt.reset();
}

// Phase two of the start: every node has its folder and shim, and the leader its port.
void start_when_prepared(Step& step, LiveJob& job, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  if (attempt.start_sent || attempt.failing || !attempt.all(&NodePart::prepared) || attempt.record.store_port == 0)
    return;
  if (job.record.state == JobState::kStopping) return;
  apply(job, JobEvent::kPrepared);
  const Node* leader = step.state.nodes.find(attempt.leader());
  attempt.record.store_host = leader == nullptr ? "" : leader->record.address;
  attempt.start_sent = attempt.start_waits = true;  // begin_watch() starts to watch when Start is sent.
  step.expect(change, SendCommand{job.key(), CommandKind::kStart, attempt.nodes()});
  journal::Line& line = change.then.lines.emplace_back(journal::Line{journal::Level::kInfo, "AttemptStarted", {}});
  line.add("job", job.record.name).add("uid", job.record.uid).add("attempt", absl::StrCat(attempt.record.number));
  put_attempt(change, job, attempt.record);
  put_job(change, job);
}

}  // namespace titan::core
