// Nodes as clients see them.

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "controller/core/core.h"

namespace titan::core {

absl::Status no_such_node(const std::string& name) {
  return rpc::error(absl::StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node ", name), {{"node", name}});
}

std::vector<std::string> Core::jobs_of(const std::string& node) const {
  const auto it = jobs_on_.find(node);
  if (it == jobs_on_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

NodeView Core::node_view(const cluster::Node& node) const {
  const std::string& name = node.record.name;
  NodeView view;
  view.node = node;
  view.devices_used = devices_of_strays(name);
  for (const std::string& uid : jobs_of(name)) {
    const LiveJob& job = jobs_.at(uid);
    const NodePart& part = job.attempt->parts.at(name);
    if (part.ended) continue;
    view.devices_used += part.placement.num_ranks;
    view.jobs.push_back(job.record.name);
    const std::vector<SlowRank> slow = slow_ranks_on(job, name);
    view.is_slow |= !slow.empty() && slow.size() == static_cast<size_t>(part.placement.num_ranks);
    view.slow.insert(view.slow.end(), slow.begin(), slow.end());
  }
  view.is_slow |= view.slow.size() > 1;
  if (const auto strays = strays_.find(name); strays != strays_.end()) {
    for (const auto& [key, stray] : strays->second) {
      if (stray.unknown) view.unknown.emplace_back(key, stray);
    }
  }
  return view;
}

std::vector<NodeView> Core::nodes(const Now& now) const {
  std::vector<NodeView> views;
  for (const auto& [name, node] : nodes_.all()) views.push_back(node_view(node));
  add_refusals(views, now.monotonic);
  return views;
}

absl::StatusOr<NodeView> Core::node(const std::string& name, const Now& now) const {
  std::vector<NodeView> views;
  if (const cluster::Node* node = nodes_.find(name); node != nullptr) views.push_back(node_view(*node));
  add_refusals(views, now.monotonic);
  for (NodeView& view : views) {
    if (view.node.record.name == name) return std::move(view);
  }
  return no_such_node(name);
}

SessionId Core::session_of(const std::string& name) const {
  const cluster::Node* node = nodes_.find(name);
  return node == nullptr ? 0 : node->session;
}

}  // namespace titan::core
