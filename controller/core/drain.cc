// A node that is to be empty: nothing new is placed there, and what runs saves and goes on elsewhere.

#include <utility>

#include "controller/core/core.h"

namespace titan::core {

void Core::take(const DrainNode& input) {
  const Node* node = nodes_.find(input.node);
  const bool drains = node != nullptr && node->record.cordoned && is_draining(input.node) &&
                      (input.reason.empty() || node->record.cordon_reason == input.reason);
  if (!drains) return cordon({input.request, input.node, true, input.reason, input.actor}, /*leave=*/true);
  ask_to_leave(input.node, input.request);  // Whoever waits asks again and again.
}

bool Core::is_draining(const std::string& name) const {
  const Node* node = nodes_.find(name);
  return node != nullptr && node->record.drain.time_ns != 0;
}

// The ranks of one node are asked as by a daemon that stops: all ranks of the attempt agree on the step, save and
// leave, and the next attempt finds the node cordoned. A job that cannot save would lose what it trained: it stays to
// its end. One that is about to start is asked when it has started; a restarted controller asks when the node
// registers.
void Core::empty_node(const std::string& name) {
  if (!is_draining(name)) return;
  const std::string actor = nodes_.find(name)->record.drain.actor;
  for (const std::string& uid : jobs_of(name)) {
    LiveJob& job = jobs_.at(uid);
    LiveAttempt& attempt = *job.attempt;
    NodePart& part = attempt.parts.at(name);
    if (attempt.failing || !attempt.start_sent || attempt.start_waits || job.stops() || part.ended) continue;
    if (std::exchange(part.asked_to_leave, true)) continue;
    const bool leaves = job.record.spec.saves;
    Change change;
    add_event(change, job,
              {.node = name,
               .attempt = attempt.record.number,
               .reason = "NodeDraining",
               .message = leaves ? "the ranks save and go on elsewhere" : "the job cannot save, so it stays to its end",
               .actor = actor});
    put_job(change, job);
    if (leaves) expect(change, Tell{job.key(), Command::kStop, {name}});
    commit(std::move(change));
  }
}

void Core::ask_to_leave(const std::string& name, RequestId request) {
  empty_node(name);
  Change last;
  Reply& reply = last.then.replies.emplace_back();
  reply.request = request;
  reply.node = node_view(*nodes_.find(name));
  commit(std::move(last));
}

}  // namespace titan::core
