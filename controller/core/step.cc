// Runs what waits for the outcome of a transaction, and the small operations of a step.

#include "controller/core/step.h"

#include <utility>

namespace titan::core {

void Step::commit(Change change) {
  if (change.mutations.empty() && change.erased_prefixes.empty() && change.token == 0 && change.then.empty()) return;
  effects.changes.push_back(std::move(change));
}

void Step::expect(Change& change, Continuation continuation) {
  change.token = state.expected.add(std::move(continuation));
}

void Step::send(const std::string& node, NodeCommand command) {
  const SessionId session = session_of(state.nodes, node);
  if (session != 0) effects.now.sends.push_back({session, std::move(command)});
}

void Step::refuse(RequestId request, const absl::Status& why) {
  Reply& reply = effects.now.replies.emplace_back();
  reply.request = request;
  reply.status = why;
}

void Step::measure(MetricSample::Kind kind, double value, std::string label) {
  effects.now.measures.push_back({kind, std::move(label), value});
}

void take(Step& step, const Durable& input) {
  const std::optional<Continuation> continuation = step.state.expected.take(input.token);
  if (!continuation) return;
  std::visit([&](const auto& next) { on_outcome(step, next, input.status); }, *continuation);
}

void on_outcome(Step& step, const SendCommand& sent, const absl::Status& status) {
  LiveJob* live = step.state.jobs.find(sent.attempt.first);
  if (!status.ok() || live == nullptr || !live->attempt) return;
  LiveJob& job = *live;
  if (job.attempt->record.number != sent.attempt.second) return;
  if (sent.command == CommandKind::kPrepare) return send_prepare(step, job, sent.nodes);
  if (sent.command == CommandKind::kStop) {
    job.attempt->stop_waits = false;
    set_stop_deadline(step.now, job);
  }
  if (sent.command == CommandKind::kStart) begin_watch(step.now, *job.attempt);
  for (const std::string& node : sent.nodes) {
    if (job.attempt->parts.at(node).ended) continue;
    switch (sent.command) {
      case CommandKind::kStart:
        send_start(step, job, node);
        break;
      case CommandKind::kCheckpoint:
        send_checkpoint(step, job, node);
        break;
      case CommandKind::kStop:
        send_stop(step, job, node);
        break;
      case CommandKind::kPrepare:
        break;
    }
  }
  if (sent.command != CommandKind::kStart) return;
  for (const std::string& node : sent.nodes) drain_ranks(step, node);  // It may have been drained meanwhile.
}

void answer_when_shown(Step& step, RequestId request, const std::string& job) {
  if (request == 0) return;
  Change change;
  Reply& reply = change.then.replies.emplace_back();
  reply.request = request;
  reply.job = job;
  step.commit(std::move(change));
}

}  // namespace titan::core
