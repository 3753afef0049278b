// Nodes that fail attempts by themselves: the job avoids them, their records keep the blame, and bad ones are cordoned.

#include "controller/job/blame.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controller/core/step.h"
#include "controller/scheduler/request.h"

namespace titan::core {
namespace {

constexpr char kByController[] = "by the controller: ";  // Prefix of a reason.
constexpr size_t kNodesPerCordoned = 10;                 // By itself the controller cordons at most one node in ten.

bool is_open_to(const Node& node, const LiveJob& job) {
  return node.record.device == job.record.spec.device && node.can_take_ranks() && !node.record.cordoned;
}

// True if idle nodes could hold the job without `without` and those that the job avoids already.
bool others_could_hold(const NodeTable& nodes, const LiveJob& job, const std::string& without) {
  const scheduler::GangRequest request = scheduler::GangRequest::of(scheduler_job(job.record.spec));
  const std::vector<std::string>& avoided = job.record.avoided_nodes;
  int capacity = 0;
  for (const auto& [name, node] : nodes.all()) {
    const bool is_other = name != without && std::find(avoided.begin(), avoided.end(), name) == avoided.end();
    if (is_other && is_open_to(node, job)) capacity += request.share(node.record.devices);
  }
  return capacity >= request.ranks;
}

void blame(Step& step, Node& node, const LiveJob& job, const std::string& reason) {
  // The node itself reports that it takes no ranks, and later that it takes them again: no operator has to uncordon it.
  if (!node.unusable.empty() && reason != job::name(job::Cause::kNodeLost)) return;
  job::add_blame(node.record.blames, {job.record.uid, reason, step.now.wall_ns()});
  const std::string why = job::reason_to_cordon(node.record.blames);
  Change change;
  if (!why.empty() && !node.record.cordoned && may_cordon(step.state.nodes, node)) {
    cordon_by_controller(step, node, why, change);
  }
  put_node(step, change, node);
  step.commit(std::move(change));
}

}  // namespace

void blame_nodes(Step& step, LiveJob& job, const job::AttemptEnd& end, const std::vector<std::string>& lost) {
  std::vector<std::string> avoided = job::nodes_to_avoid(end);
  if (job::is_black_hole(end, job.record.history.without_progress) &&
      others_could_hold(step.state.nodes, job, end.node)) {
    avoided = {end.node};
  }
  job::avoid(job.record.avoided_nodes, avoided);
  for (const std::string& node : avoided) job.record.reserved.erase(node);
  if (job::blames_node(end)) {
    Node* node = step.state.nodes.find(end.node);
    if (node != nullptr) blame(step, *node, job, end.reason.empty() ? std::string(job::name(end.cause)) : end.reason);
  }
  for (const std::string& name : lost) {
    Node* node = step.state.nodes.find(name);
    if (node != nullptr) blame(step, *node, job, std::string(job::name(job::Cause::kNodeLost)));
  }
}

bool can_go_elsewhere(const NodeTable& nodes, const LiveJob& job) {
  return std::any_of(nodes.all().begin(), nodes.all().end(), [&](const auto& item) {
    return job.attempt->parts.count(item.first) == 0 && is_open_to(item.second, job);
  });
}

void cordon_by_controller(Step& step, Node& node, const std::string& why, Change& change) {
  node.record.cordoned = true;
  node.record.cordon_reason = absl::StrCat(kByController, why);
  node.record.blames.clear();  // An operator who uncordons it has repaired it.
  add_node_event(step, change, node, "NodeCordoned", node.record.cordon_reason, "warning");
  update_scheduler_node(step, node);
}

// A failure on every node is not the fault of one, and a small cluster has no spare nodes. Nodes that an operator
// cordoned for maintenance do not count: they must not keep a bad node in service.
bool may_cordon(const NodeTable& nodes, const Node& node) {
  size_t alike = 0, cordoned = 0;
  for (const auto& [name, other] : nodes.all()) {
    if (other.record.device != node.record.device) continue;
    ++alike;
    cordoned += other.record.cordoned && absl::StartsWith(other.record.cordon_reason, kByController);
  }
  return alike >= 3 && cordoned < std::max<size_t>(1, alike / kNodesPerCordoned);
}

}  // namespace titan::core
