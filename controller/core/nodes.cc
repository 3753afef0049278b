// Nodes as clients see them.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr size_t kNamed = 8;  // Names in a list of what a node may run.

// Lists in words what a node may run, as far as is known. Empty: nothing.
std::string may_run_there(const State& state, const std::string& name) {
  std::vector<std::string> all;
  for (const std::string& uid : state.placed.on(name)) {
    const LiveJob& job = state.jobs.at(uid);
    const NodePart& part = job.attempt->parts.at(name);
    if (part.lost) continue;  // It is among the strays or the ranks left behind.
    all.push_back(absl::StrCat(counted(part.placement.num_ranks, "rank"), " of ", job.record.name));
  }
  for (const auto& [key, left] : state.left.on(name)) {
    if (!left.may_train) continue;
    all.push_back(absl::StrCat(counted(left.ranks, "rank"), " of ", left.job, " (attempt ", key.second, ") until ",
                               absl::FormatTime(absl::RFC3339_sec, left.until_wall, absl::UTCTimeZone())));
  }
  for (const auto& [key, stray] : state.strays.on(name)) {
    all.push_back(absl::StrCat("attempt ", key.second, " of ", stray.job.empty() ? key.first : stray.job));
  }
  const size_t more = all.size() > kNamed ? all.size() - kNamed : 0;
  all.resize(all.size() - more);
  return absl::StrCat(absl::StrJoin(all, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

absl::Status no_such_node(const std::string& name) {
  return rpc::error(absl::StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node ", name), {{"node", name}});
}

NodeView node_view(const State& state, const Node& node) {
  const std::string& name = node.record.name;
  NodeView view;
  view.node = node;
  if (node.speaks() && !node.unusable.empty()) view.node.state = NodeState::kUnusable;
  view.devices_used = state.strays.devices_on(name);
  for (const std::string& uid : state.placed.on(name)) {
    const LiveJob& job = state.jobs.at(uid);
    const NodePart& part = job.attempt->parts.at(name);
    if (part.ended) continue;
    view.devices_used += part.placement.num_ranks;
    view.jobs.push_back(job.record.name);
    const std::vector<SlowRank> slow = slow_ranks_on(job, name);
    view.is_slow |= !slow.empty() && slow.size() == static_cast<size_t>(part.placement.num_ranks);
    view.slow.insert(view.slow.end(), slow.begin(), slow.end());
  }
  view.is_slow |= view.slow.size() > 1;
  for (const auto& [key, left] : state.left.on(name)) {
    if (!left.may_train) continue;
    view.left.emplace_back(key, left);
    // Until the node reports what runs there, they count as running: a node with many ranks would look idle otherwise.
    if (view.node.state != core::NodeState::kReconciling) continue;
    view.devices_used += left.ranks;
    view.jobs.push_back(left.job);
  }
  for (const auto& [key, stray] : state.strays.on(name)) {
    if (stray.unknown) view.unknown.emplace_back(key, stray);
  }
  return view;
}

// A refused worker that is not a node of this cluster is shown with its name, address, version and refusal.
std::optional<NodeView> shown_node(const State& state, const std::string& name) {
  const Node* node = state.nodes.find(name);
  const RefusedWorker* refused = state.refused_workers.find(name);
  if (node == nullptr && refused == nullptr) return std::nullopt;
  NodeView view;
  if (node != nullptr) view = node_view(state, *node);
  if (refused == nullptr) return view;
  view.refusal = absl::StrCat(refused->reason, ": ", refused->message);
  // A request by another daemon for this node's id does not concern the node: its state stays.
  const bool is_impostor = node != nullptr && node->record.instance != refused->instance;
  if (view.node.session == 0 && !is_impostor) view.node.state = NodeState::kRefused;
  if (node != nullptr) return view;
  view.node.record.name = name;
  view.node.record.address = refused->address;
  view.node.record.version = refused->version;
  return view;
}

std::vector<NodeView> node_views(const State& state) {
  std::set<std::string> names;
  for (const auto& [name, node] : state.nodes.all()) names.insert(name);
  for (const std::string& name : state.refused_workers.nodes()) names.insert(name);
  std::vector<NodeView> views;
  for (const std::string& name : names) views.push_back(*shown_node(state, name));
  return views;
}

void touch_nodes_of(Step& step, const LiveJob& job) {
  for (const auto& [node, part] : job.attempt->parts) step.touch(node);
}

void end_step(Step& step) {
  for (const std::string& name : std::exchange(step.touched, {})) {
    std::optional<NodeView> view = shown_node(step.state, name);
    if (view) {
      step.effects.nodes.push_back(std::make_shared<const NodeView>(*std::move(view)));
    } else {
      step.effects.nodes_gone.push_back(name);
    }
  }
  step.effects.kept_log_bytes = step.state.kept_logs.bytes();
}

// The node is removed at once, so that nothing is decided about it while the change is on its way to the store. A
// worker that comes back after all registers as a new node.
void take(Step& step, const DeleteNode& input) {
  const Node* node = step.state.nodes.find(input.node);
  if (node == nullptr) return step.refuse(input.request, no_such_node(input.node));
  const auto refuse_since = [&](const char* reason, const std::string& why) {
    step.refuse(input.request, rpc::error(absl::StatusCode::kFailedPrecondition, reason,
                                          absl::StrCat("node ", input.node, " ", why), {{"node", input.node}}));
  };
  if (node->state != NodeState::kLost || node->session != 0) {
    return refuse_since(
        "NODE_NOT_LOST",
        absl::StrCat(
            "is ", name(node->state),
            ": only a node that is LOST can be deleted; stop its titan-worker and wait until its lease is over"));
  }
  const std::string in_use = may_run_there(step.state, input.node);
  if (!in_use.empty() && !input.force) {
    return refuse_since("NODE_IN_USE",
                        absl::StrCat("may still run ", in_use,
                                     ". If its machine is off, run `titanctl node delete --force ", input.node, "`"));
  }
  if (!in_use.empty()) give_up_node(step, input.node);
  Change change;
  change.mutations.push_back(store::erase(node_key(input.node)));
  change.erased_prefixes.push_back(node_events_prefix(input.node));
  Reply& reply = change.then.replies.emplace_back();
  reply.request = input.request;
  reply.node = node_view(step.state, *node);
  journal::Line& line = change.then.lines.emplace_back(journal::Line{journal::Level::kInfo, "NodeDeleted", {}});
  line.add("node", input.node).add("actor", input.actor);
  step.touch(input.node);
  step.state.queue.remove_node(input.node);
  step.state.nodes.remove(input.node);
  step.commit(std::move(change));
}

SessionId session_of(const NodeTable& nodes, const std::string& name) {
  const Node* node = nodes.find(name);
  return node == nullptr ? 0 : node->session;
}

}  // namespace titan::core
