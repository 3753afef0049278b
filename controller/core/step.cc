// One input after the other: to whom each goes, and what is done once a transaction's outcome is known.

#include <utility>

#include "controller/core/core.h"

namespace titan::core {

Core::Core(Options options) : options_(std::move(options)), nodes_(options_.lease, options_.beat) {}

Effects Core::step(const Input& input, const Now& now) {
  now_ = now;
  std::visit([this](const auto& what) { take(what); }, input);
  return end_step();
}

void Core::take(const Durable& input) {
  const auto it = expected_.find(input.token);
  if (it == expected_.end()) return;
  const Continuation continuation = std::move(it->second);
  expected_.erase(it);
  std::visit([&](const auto& next) { go_on(next, input.status); }, continuation);
}

// A change has one continuation: what happens to several jobs is several changes.
void Core::expect(Change& change, Continuation continuation) {
  change.token = next_token_++;
  expected_.emplace(change.token, std::move(continuation));
}

void Core::go_on(const Tell& tell, const absl::Status& status) {
  const auto live = jobs_.find(tell.attempt.first);
  if (!status.ok() || live == jobs_.end() || !live->second.attempt) return;
  LiveJob& job = live->second;
  if (job.attempt->record.number != tell.attempt.second) return;
  if (tell.command == Command::kPrepare) return send_prepare(job, tell.nodes);
  if (tell.command == Command::kStop) {
    job.attempt->stop_waits = false;
    set_stop_deadline(job);
  }
  if (tell.command == Command::kStart) begin_watch(*job.attempt);
  for (const std::string& node : tell.nodes) {
    if (job.attempt->parts.at(node).ended) continue;
    switch (tell.command) {
      case Command::kStart:
        send_start(job, node);
        break;
      case Command::kCheckpoint:
        send_checkpoint(job, node);
        break;
      case Command::kStop:
        send_stop(job, node);
        break;
      case Command::kPrepare:
        break;
    }
  }
  if (tell.command != Command::kStart) return;
  for (const std::string& node : tell.nodes) empty_node(node);  // Drained while the attempt was prepared.
}

// To whoever speaks for the node; nobody: every command is said again to its next session.
void Core::send(const std::string& name, v1::ControllerMessage message) {
  const SessionId session = session_of(name);
  if (session != 0) effects_.now.sends.push_back({session, std::move(message), nullptr});
}

void Core::refuse(RequestId request, const absl::Status& why) {
  Reply& reply = effects_.now.replies.emplace_back();
  reply.request = request;
  reply.status = why;
}

// What is decided and not yet durable comes first.
void Core::answer_when_shown(RequestId request, const std::string& job) {
  if (request == 0) return;
  Change change;
  Reply& reply = change.then.replies.emplace_back();
  reply.request = request;
  reply.job = job;
  commit(std::move(change));
}

}  // namespace titan::core
