#include "worker/rank/comm/connections.h"

#include <algorithm>
#include <utility>

namespace titan::comm {
namespace {

enum class Flow { kWeightsAndReports, kPipeline, kTensor, kContext, kExperts, kApart };

Flow flow_of(mesh::Axis axis) {
  switch (axis) {
    case mesh::Axis::kPipeline:
      return Flow::kPipeline;
    case mesh::Axis::kTensor:
    case mesh::Axis::kExpertTensor:
      return Flow::kTensor;
    case mesh::Axis::kContext:
      return Flow::kContext;
    case mesh::Axis::kExpert:
      return Flow::kExperts;
    default:
      return Flow::kWeightsAndReports;
  }
}

}  // namespace

ConnectionPlan connection_plan(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes,
                               const std::map<mesh::Axis, Messages>& messages, const std::set<mesh::Axis>& apart) {
  ConnectionPlan plan;
  std::map<std::pair<Flow, RankGroups>, size_t> known;
  for (const mesh::Axis axis : axes) {
    if (mesh.size(axis) == 1) continue;
    const Flow flow = apart.contains(axis) ? Flow::kApart : flow_of(axis);
    RankGroups groups = mesh.groups(axis);
    const auto [found, is_new] = known.emplace(std::pair(flow, groups), plan.connections.size());
    if (is_new) plan.connections.push_back({mesh::name(axis), std::move(groups)});
    Messages& carried = plan.connections[found->second].messages;  // Of all axes that share it the most.
    if (flow == Flow::kPipeline) carried = std::max(carried, Messages::kNeighbours);
    if (const auto wanted = messages.find(axis); wanted != messages.end()) carried = std::max(carried, wanted->second);
    plan.of_axis[axis] = found->second;
  }
  return plan;
}

}  // namespace titan::comm
