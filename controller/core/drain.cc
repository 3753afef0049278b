// Drains: nothing new is placed on the node, and what runs there saves and continues elsewhere.

#include <utility>

#include "controller/core/step.h"

namespace titan::core {

void take(Step& step, const DrainNode& input) {
  const Node* node = step.state.nodes.find(input.node);
  const bool drains = node != nullptr && node->record.cordoned && is_draining(step.state.nodes, input.node) &&
                      (input.reason.empty() || node->record.cordon_reason == input.reason);
  if (!drains) return cordon(step, {input.request, input.node, true, input.reason, input.actor}, /*leave=*/true);
  ask_to_leave(step, input.node, input.request);  // The client that waits polls with this request.
}

bool is_draining(const NodeTable& nodes, const std::string& name) {
  const Node* node = nodes.find(name);
  return node != nullptr && node->record.drain.time_ns != 0;
}

// The ranks of one node are stopped as by a titan-worker that stops: all ranks of the attempt agree on the step, save
// and leave, and the next attempt finds the node cordoned. A job that cannot save would lose its training, so it stays
// to its end. An attempt that is about to start is stopped when it has started. A restarted controller stops it when
// the node registers.
void drain_ranks(Step& step, const std::string& name) {
  if (!is_draining(step.state.nodes, name)) return;
  const std::string actor = step.state.nodes.find(name)->record.drain.actor;
  for (const std::string& uid : step.state.placed.on(name)) {
    LiveJob& job = step.state.jobs.at(uid);
    LiveAttempt& attempt = *job.attempt;
    NodePart& part = attempt.parts.at(name);
    if (attempt.failing || !attempt.start_sent || attempt.start_waits || job.stops() || part.ended) continue;
    if (std::exchange(part.asked_to_leave, true)) continue;
    const bool leaves = job.record.spec.saves;
    Change change;
    add_event(step, change, job,
              {.node = name,
               .attempt = attempt.record.number,
               .reason = "NodeDraining",
               .message = leaves ? "the ranks save and continue elsewhere"
                                 : "the job cannot save checkpoints, so it stays until it ends",
               .actor = actor});
    put_job(change, job);
    if (leaves) step.expect(change, SendCommand{job.key(), CommandKind::kStop, {name}});
    step.commit(std::move(change));
  }
}

void ask_to_leave(Step& step, const std::string& name, RequestId request) {
  drain_ranks(step, name);
  Change last;
  Reply& reply = last.then.replies.emplace_back();
  reply.request = request;
  reply.node = node_view(step.state, *step.state.nodes.find(name));
  step.commit(std::move(last));
}

}  // namespace titan::core
