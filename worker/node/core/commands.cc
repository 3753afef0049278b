// Handles sessions and commands of the controller, and decides which commands are obeyed, and when.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

using Message = v1::ControllerMessage;

AttemptKey key_of(const v1::AttemptId& id) { return {id.job_uid(), id.number()}; }

void obey_held(Step& step);

void accept(Step& step, const v1::Welcome& welcome) {
  NodeState& state = step.state;
  state.adopting = false;
  state.connected = true;
  state.lease_epoch = welcome.lease_epoch();
  if (welcome.lease_milliseconds() > 0) state.lease = duration_of(welcome.lease_milliseconds());
  state.heard_at = step.now.monotonic;
  ++state.sessions;
  step.log(
      journal::Level::kInfo, "Connected",
      absl::StrCat("connected to ", step.state.controller, ", lease ", absl::ToInt64Milliseconds(state.lease), " ms"));
  for (auto& [key, attempt] : state.attempts) {
    rewind(attempt);
    report_after_events(step, attempt);
  }
  obey_held(step);
}

// The node's cluster. An id that is still being written is used already, so of two controllers the first one wins.
struct Cluster {
  std::string id;
  Op writing = 0;
};
Cluster cluster_of(const NodeState& state) {
  Cluster cluster = {state.cluster};
  for (const auto& [op, what] : state.pending) {
    if (what.kind == Pending::Kind::kCluster) cluster = {what.cluster, op};
  }
  return cluster;
}

// A controller with another store does not know what runs here and must not be able to stop it. Older controllers
// accept every worker, so the worker compares the ids itself.
void on_welcome(Step& step, const v1::Welcome& welcome) {
  NodeState& state = step.state;
  const Cluster known = cluster_of(state);
  if (!known.id.empty() && known.id != welcome.cluster() && !state.adopting) {
    step.reset(absl::StrCat(
        "the controller at ", step.state.controller, " belongs to cluster ", welcome.cluster(), " and this worker to ",
        known.id,
        ": its commands are ignored and running ranks continue. To follow that controller, restart titan-worker once "
        "with --adopt-cluster"));
    // A controller answers and a person has to decide, so the ranks are not orphans.
    state.heard_at = step.now.monotonic;
    state.held.clear();
    return;
  }
  const bool same = known.id == welcome.cluster() || welcome.cluster().empty();
  if (same && known.writing == 0) return accept(step, welcome);
  state.welcome = welcome;
  state.joining = known.writing;
  if (same) return;
  state.joining = step.begin({.kind = Pending::Kind::kCluster, .cluster = welcome.cluster()});
  step.out(WriteCluster{state.joining, welcome.cluster()});
}

// Drops everything that belongs to the session: the controller sends commands again that were not obeyed.
void end_session(NodeState& state) {
  state.connected = state.welcomed = false;
  state.joining = 0;
  state.welcome.reset();
  state.held.clear();
  for (auto& [key, attempt] : state.attempts) attempt.after.clear();
}

void on_forget(Step& step, const AttemptKey& key) {
  Attempt* const attempt = step.find(key);
  if (attempt == nullptr) return;
  attempt->forget = true;
  if (!attempt->ending()) stop(step, *attempt, /*save=*/false, 0, "forgotten by the controller");
}

void on_read_log(Step& step, const v1::ReadLog& request) {
  const Attempt* const attempt = step.find(key_of(request.id()));
  bool may_print = false;
  if (attempt != nullptr && !attempt->ending()) {
    for (const RankState& rank : attempt->ranks) may_print = may_print || (rank.rank == request.rank() && !rank.exit);
  }
  step.out(AnswerLog{step.state.session, request, !may_print});
}

void on_read_trace(Step& step, const v1::ReadTrace& request) {
  Attempt* const attempt = step.find(key_of(request.id()));
  const RankState* const rank = attempt == nullptr ? nullptr : find_rank(*attempt, request.rank());
  const bool gone = rank == nullptr || attempt->ending() || rank->exit;
  step.out(AnswerTrace{step.state.session, request, attempt != nullptr, gone});
}

// Handles a command of a leader whose epoch could not be written: ending and reading are allowed, starting is refused.
void obey_without_epoch(Step& step, const Message& message, const std::string& error) {
  const Refusal why = {"STATE_FOLDER_UNUSABLE", absl::StrCat("cannot write the leader's epoch: ", error)};
  // A Prepare for a known attempt is only answered with a report: the attempt may run, and a refusal would end it.
  if (message.has_prepare() && step.find(key_of(message.prepare().id())) == nullptr) {
    return answer_unknown(step, key_of(message.prepare().id()), v1::AttemptReport::REFUSED, why);
  }
  if (message.has_start()) {
    Attempt* const attempt = step.find(key_of(message.start().id()));
    if (attempt != nullptr && !attempt->started && !attempt->ending()) return refuse(step, *attempt, why);
  }
  obey(step, message);
}

void take(Step& step, const Message& message) {
  NodeState& state = step.state;
  const int64_t epoch = message.leader_epoch();
  if (epoch > 0 && epoch < state.leader_epoch) {
    if (!message.has_welcome()) return report_stale_leader(step, message);
    state.held.clear();
    return step.reset(absl::StrCat("the controller at ", step.state.controller, " led in epoch ", epoch,
                                   ", but this worker has seen epoch ", state.leader_epoch));
  }
  if (message.has_welcome()) {
    state.leader_epoch = std::max(state.leader_epoch, epoch);
    state.welcomed = true;
    return on_welcome(step, message.welcome());
  }
  if (!state.welcomed || state.joining != 0) return state.held.push_back(message);
  if (!state.connected) return;  // From a controller that this worker does not follow.
  state.leader_epoch = std::max(state.leader_epoch, epoch);
  if (message.has_beat_ack()) {
    state.heard_at = step.now.monotonic;
    return;
  }
  if (epoch > state.durable_epoch && state.raising == 0) {
    state.raising = step.begin({.kind = Pending::Kind::kEpoch, .epoch = state.leader_epoch});
    state.raise_by = step.now.monotonic + kWriteTimeout;
    step.out(WriteLeaderEpoch{state.raising, state.leader_epoch});
  }
  if (state.raising != 0) return state.held.push_back(message);
  obey(step, message);
}

void obey_held(Step& step) {
  NodeState& state = step.state;
  while (!state.held.empty() && state.connected && state.joining == 0 && state.raising == 0) {
    const Message message = std::move(state.held.front());
    state.held.pop_front();
    take(step, message);
    if (state.raising == 0 || state.held.empty()) continue;
    state.held.push_front(std::move(state.held.back()));  // It waits again, ahead of the messages that came after it.
    state.held.pop_back();
  }
}

}  // namespace

void on_command(Step& step, const Command& command) {
  NodeState& state = step.state;
  if (command.session > state.session) {
    end_session(state);
    state.session = command.session;
  }
  if (command.session != state.session) return;
  state.controller = command.controller;
  take(step, command.message);
}

const v1::AttemptId* id_of(const Message& message) {
  switch (message.kind_case()) {
    case Message::kPrepare:
      return &message.prepare().id();
    case Message::kStart:
      return &message.start().id();
    case Message::kStop:
      return &message.stop().id();
    case Message::kCheckpoint:
      return &message.checkpoint().id();
    case Message::kEventsAck:
      return &message.events_ack().id();
    case Message::kForget:
      return &message.forget().id();
    case Message::kReadLog:
      return &message.read_log().id();
    case Message::kReadTrace:
      return &message.read_trace().id();
    case Message::kDiagnose:
      return &message.diagnose().id();
    case Message::kWelcome:
    case Message::kBeatAck:
    case Message::KIND_NOT_SET:
      return nullptr;
  }
  return nullptr;
}

void obey(Step& step, const Message& message) {
  const v1::AttemptId* const id = id_of(message);
  Attempt* const named = id == nullptr ? nullptr : step.find(key_of(*id));
  if (named != nullptr && named->stage == Stage::kForgetting) return named->after.push_back(message);
  switch (message.kind_case()) {
    case Message::kPrepare:
      return prepare(step, message.prepare());
    case Message::kStart: {
      if (Attempt* const attempt = step.find(key_of(message.start().id())))
        return start(step, *attempt, message.start());
      return answer_unknown(step, key_of(message.start().id()), v1::AttemptReport::REFUSED,
                            {"NOT_PREPARED", "this node has not prepared that attempt"});
    }
    case Message::kStop: {
      const v1::Stop& order = message.stop();
      if (Attempt* const attempt = step.find(key_of(order.id()))) {
        for (const int named : order.named_ranks()) {
          if (RankState* const rank = find_rank(*attempt, named)) rank->named = true;
        }
        return stop(step, *attempt, order.save(), order.grace_milliseconds(), order.reason(),
                    order.deadline_milliseconds());
      }
      return answer_unknown(step, key_of(order.id()), v1::AttemptReport::ENDED,
                            {"NOT_PREPARED", "that attempt does not run on this node"});
    }
    case Message::kCheckpoint: {
      Attempt* const attempt = step.find(key_of(message.checkpoint().id()));
      if (attempt != nullptr && attempt->shim_may_live() && !attempt->ending()) {
        send_to_shim(step, *attempt, {.kind = ShimCommand::Kind::kCheckpoint});
      }
      return;
    }
    case Message::kEventsAck: {
      const v1::EventsAck& ack = message.events_ack();
      if (Attempt* const attempt = step.find(key_of(ack.id()))) acknowledge(step, *attempt, ack.rank(), ack.sequence());
      return;
    }
    case Message::kForget:
      return on_forget(step, key_of(message.forget().id()));
    case Message::kReadLog:
      return on_read_log(step, message.read_log());
    case Message::kReadTrace:
      return on_read_trace(step, message.read_trace());
    case Message::kDiagnose:
      return diagnose(step, message.diagnose());
    case Message::kBeatAck:
    case Message::kWelcome:
    case Message::KIND_NOT_SET:
      return;  // A newer controller may send messages that this worker does not know.
  }
}

void on_joined(Step& step, const std::string& before, const std::string& error) {
  NodeState& state = step.state;
  state.joining = 0;
  const v1::Welcome welcome = *std::exchange(state.welcome, std::nullopt);
  if (!error.empty()) {
    state.held.clear();
    return step.reset(absl::StrCat("cannot write the cluster's id: ", error));
  }
  step.log(journal::Level::kInfo, "ClusterJoined",
           absl::StrCat("belongs to cluster ", welcome.cluster(), before.empty() ? "" : ", previously to ", before));
  accept(step, welcome);
}

void on_epoch_written(Step& step, const std::string& error) {
  NodeState& state = step.state;
  state.raising = 0;
  if (error.empty()) return obey_held(step);
  step.log(journal::Level::kError, "WriteFailed", absl::StrCat("cannot write the leader's epoch: ", error));
  if (!state.connected) return;  // Held messages wait for the Welcome.
  for (const Message& message : std::exchange(state.held, {})) {
    if (message.leader_epoch() > 0 && message.leader_epoch() < state.leader_epoch) {
      report_stale_leader(step, message);
    } else {
      obey_without_epoch(step, message, error);
    }
  }
}

void on_disconnected(Step& step, const Disconnected& lost) {
  NodeState& state = step.state;
  if (lost.session >= state.session) {
    end_session(state);
    state.session = lost.session;
  }
  if (lost.reason == "WRONG_CLUSTER") state.heard_at = step.now.monotonic;  // See on_welcome().
}

}  // namespace titan::node
