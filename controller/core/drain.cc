// A node that is to be empty: nothing new is placed there, and what runs saves and goes on elsewhere.

#include <utility>

#include "controller/core/core.h"

namespace titan::core {

void Core::take(const DrainNode& input) {
  const cluster::Node* node = nodes_.find(input.node);
  const bool cordoned =
      node != nullptr && node->record.cordoned && (input.reason.empty() || node->record.cordon_reason == input.reason);
  if (cordoned) return ask_to_leave(input.node, input.request, input.actor);  // Whoever waits asks again and again.
  cordon({input.request, input.node, true, input.reason, input.actor}, /*leave=*/true);
}

// The ranks of one node are asked as by a daemon that stops: all ranks of the attempt agree on the step, save and
// leave, and the next attempt finds the node cordoned. A job that cannot save would lose what it trained: it stays to
// its end. One that is about to start is asked the next time.
void Core::ask_to_leave(const std::string& name, RequestId request, const std::string& actor) {
  for (const std::string& uid : jobs_of(name)) {
    LiveJob& job = jobs_.at(uid);
    LiveAttempt& attempt = *job.attempt;
    NodePart& part = attempt.parts.at(name);
    if (attempt.failing || !attempt.start_sent || job.stops() || part.ended) continue;
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
  Change last;
  Reply& reply = last.then.replies.emplace_back();
  reply.request = request;
  reply.node = node_view(*nodes_.find(name));
  commit(std::move(last));
}

}  // namespace titan::core
