// A node's session: how it begins and ends, and how each message in it is handled.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "common/service/rpc/error.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// Attempts placed there would be cut off again and again. Running ones are left alone: ranks need no controller.
void note_flapping(Step& step, Node& node) {
  Change change;
  add_node_event(step, change, node, "NodeFlapping",
                 absl::StrCat("its worker began ", node.sessions.size(), " sessions within a minute"), "warning");
  if (!node.record.cordoned && may_cordon(step.state.nodes, node))
    cordon_by_controller(step, node, "its link goes up and down", change);
  put_node(step, change, node);
  step.commit(std::move(change));
}

// Ends the wait of jobs whose node is connected again.
void end_waiting_for(Step& step, const std::string& node) {
  for (const std::string& uid : step.state.placed.on(node)) {
    LiveJob& job = step.state.jobs.at(uid);
    if (job.pending_reason != kNodeUnreachable) continue;
    Change change;
    set_pending(job, "", "", change);
    step.commit(std::move(change));
  }
}

// Nobody could see what its ranks did: they may have advanced all the time.
void excuse_parts(State& state, const Now& now, const std::string& node) {
  for (const std::string& uid : state.placed.on(node))
    state.jobs.at(uid).attempt->parts.at(node).last_advance = now.monotonic;
}

// Welcome is sent at once, not when the record is durable: on a full disk the node's ranks would end as orphans.
void welcome(Step& step, Node& node, const Registration& hello) {
  const std::string& name = hello.node;
  step.effects.now.sends.push_back(
      {node.session, Welcome{node.record.lease_epoch, step.options.lease, step.options.cluster}});
  update_scheduler_node(step, node);  // Passes on its properties. It can take ranks only once it is known what it runs.
  node.state = NodeState::kReady;
  end_waiting_for(step, name);
  excuse_parts(step.state, step.now, name);
  compare_inventory(step, node, hello);
  drain_ranks(step, name);
  update_scheduler_node(step, node);
  request_schedule(step, /*urgent=*/false);
}

// Returns how long a worker has heard nothing of this controller, from its beat. Zero for the usual time between a beat
// and its answer, and for a pause of this process.
absl::Duration deafness(const Step& step, absl::Duration unanswered) {
  if (unanswered <= 2 * step.state.nodes.beat_interval()) return absl::ZeroDuration();
  const bool was_asleep =
      step.state.pauses.is_paused(step.now.monotonic) || step.state.pauses.awake_for(step.now.monotonic) < unanswered;
  return was_asleep ? absl::ZeroDuration() : unanswered;
}

void hear(Step& step, Node& node, NodeReport& report) {
  if (const auto* beat = std::get_if<Beat>(&report)) return on_beat(step, node, *beat);
  if (const auto* part = std::get_if<AttemptReport>(&report)) return on_report(step, node, *part);
  if (const auto* events = std::get_if<RankEvents>(&report)) return on_rank_events(step, node, *events);
  if (auto* answer = std::get_if<Diagnosis>(&report)) return on_diagnosis(step, node, std::move(*answer));
  if (std::holds_alternative<MisdirectedAnswer>(report)) {
    note_foreign(step, node, "an answer to a question that another node was asked");
  }
}

}  // namespace

void take(Step& step, const OpenSession& input) {
  const Registration& hello = input.hello;
  const absl::Status ours = check_cluster(step.options, hello);
  const absl::StatusOr<NodeTable::Opened> opened =
      ours.ok() ? step.state.nodes.open_session(hello, input.session, step.now.monotonic, step.now.wall) : ours;
  if (!opened.ok()) {
    // Nobody is kept out: the node is already connected by its later session.
    if (rpc::reason(opened.status()) != kSessionReplaced) note_refusal(step, hello, opened.status());
    step.effects.refused = opened.status();
    return;
  }
  if (opened->replaced != 0) {
    step.effects.closes.emplace_back(opened->replaced, "a newer session of this node took over");
  }
  step.state.refused_workers.forget(hello.node);
  Change change;
  add_node_event(step, change, *opened->node, "NodeRegistered",
                 absl::StrCat(counted(hello.devices, hello.device + " device"), ", ", counted(hello.cpu_cores, "core"),
                              ", version ", hello.version),
                 "info", input.peer);
  put_node(step, change, *opened->node);
  step.commit(std::move(change));
  note_condition(step, *opened->node, hello.unusable, hello.unix_nanoseconds);
  if (step.state.nodes.mark_flapping(*opened->node, step.now.monotonic)) note_flapping(step, *opened->node);
  welcome(step, *opened->node, hello);
}

void take(Step& step, const CloseSession& input) {
  step.state.nodes.close_session(input.node, input.session);
  if (const Node* node = step.state.nodes.find(input.node); node != nullptr) update_scheduler_node(step, *node);
}

void take(Step& step, MessageReceived& input) {
  Node* node = step.state.nodes.owner(input.node, input.session);
  if (node == nullptr) return;
  const bool could_take_ranks = node->can_take_ranks();
  const bool was_over = step.state.nodes.lease_over(*node, step.now.monotonic);
  const Beat* const beat = std::get_if<Beat>(&input.report);
  if (!node->deaf || beat != nullptr) {  // Any message shows that it lives. Only a beat shows whether it hears.
    const absl::Duration unanswered = beat != nullptr ? beat->unanswered : absl::ZeroDuration();
    step.state.nodes.beat(*node, step.now.monotonic, step.now.wall, deafness(step, unanswered));
    step.effects.beats.emplace_back(input.node, step.now.wall);
  }
  const bool is_over = step.state.nodes.lease_over(*node, step.now.monotonic);
  if (was_over && !is_over) excuse_parts(step.state, step.now, input.node);
  const bool is_back = !is_over && (node->state == NodeState::kLost || node->state == NodeState::kUnreachable);
  if (is_back) {
    node->state = NodeState::kReady;  // The lease was over, but the stream held: the node was only paused.
    end_waiting_for(step, input.node);
    stop_lost(step, input.node);
  }
  if (beat == nullptr) step.touch(input.node);
  hear(step, *node, input.report);
  if (!could_take_ranks) update_scheduler_node(step, *node);
  if (is_back) step.touch(input.node);
  // By now its report is handled. This is not urgent, since thousands of nodes may come back at once.
  if (is_back) request_schedule(step, /*urgent=*/false);
}

void note_steady(Step& step, Node& node) {
  Change change;
  add_node_event(step, change, node, "NodeSteady",
                 absl::StrCat("no new session for a minute", node.record.cordoned ? "; it stays cordoned" : ""),
                 "info");
  put_node(step, change, node);
  step.commit(std::move(change));
}

}  // namespace titan::core
