#include "worker/rank/comm/device_mesh.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "worker/rank/comm/recording_backend.h"
#include "worker/rank/comm/shared_memory_backend.h"
#include "worker/rank/comm/split_groups.h"
#include "worker/rank/comm/store.h"

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
    // The largest value of all axes that share the connection.
    Messages& carried = plan.connections[found->second].messages;
    if (flow == Flow::kPipeline) carried = std::max(carried, Messages::kNeighbours);
    if (const auto wanted = messages.find(axis); wanted != messages.end()) carried = std::max(carried, wanted->second);
    plan.of_axis[axis] = found->second;
  }
  return plan;
}

namespace {

std::vector<c10::intrusive_ptr<c10d::Backend>> open(device::Device& device, const std::vector<Connection>& connections,
                                                    const device::BackendOptions& world) {
  auto together = translate(std::string("opening the groups"), [&] { return device.open_groups(connections, world); });
  if (together) return *std::move(together);
  std::vector<c10::intrusive_ptr<c10d::Backend>> opened;
  for (const Connection& connection : connections) {
    const CommSplitPart part = part_of(connection.groups, world.rank);
    device::BackendOptions own = world;
    own.store = prefixed(world.store, group_prefix(connection, part));
    own.rank = part.index;
    own.size = part.size;
    opened.push_back(translate("group " + connection.name, [&] { return device.make_backend(own); }));
  }
  return opened;
}

}  // namespace

DeviceMesh::DeviceMesh(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes, device::Device& device, Ledger& ledger,
                       const DeviceMeshOptions& options)
    : mesh_(mesh), rank_(options.rank) {
  const ConnectionPlan plan = connection_plan(mesh, axes, options.messages, options.apart);
  const device::BackendOptions world{.store = options.store,
                                     .rank = rank_,
                                     .size = mesh.world_size(),
                                     .host = options.host,
                                     .timeout = options.timeout,
                                     .shared_memory = options.shared_memory,
                                     .max_ctas = options.max_ctas,
                                     .message_max_ctas = options.message_max_ctas};
  const std::vector<c10::intrusive_ptr<c10d::Backend>> opened = open(device, plan.connections, world);
  connections_ = opened.size();
  for (const mesh::Axis axis : axes) {
    std::vector<int> ranks = mesh.group(rank_, axis);
    c10::intrusive_ptr<c10d::Backend> backend;
    if (const auto connection = plan.of_axis.find(axis); connection != plan.of_axis.end()) {
      backend = opened[connection->second];
      shares_memory_ |= comm::shares_memory(*backend);
      backend =
          c10::make_intrusive<LedgerBackend>(std::move(backend), mesh::name(axis), ledger, static_cast<int>(axis));
      if (options.recorder != nullptr) {
        const int number = options.recorder->add_group(mesh::name(axis), ranks);
        backend = c10::make_intrusive<RecordingBackend>(std::move(backend), *options.recorder, number, options.timeout);
      }
    }
    groups_.emplace(axis, Group(mesh::name(axis), std::move(ranks), mesh.index(rank_, axis), std::move(backend),
                                options.spans, &ledger, device.torch_device()));
  }
}

const Group& DeviceMesh::group(mesh::Axis axis) const {
  const auto found = groups_.find(axis);
  TORCH_CHECK(found != groups_.end(), "no group for axis ", mesh::name(axis));
  return found->second;
}

void DeviceMesh::set_timeout(std::chrono::milliseconds timeout) const {
  for (const auto& [axis, group] : groups_) group.set_timeout(timeout);
}

// Aborts concurrently: NCCL's abort waits for the group's kernel, which may wait for capacity on a device where another
// group's kernel waits for a lost rank. One after another they could deadlock.
void DeviceMesh::abort() const {
  std::vector<std::function<void()>> calls;
  for (const auto& entry : groups_) {
    if (entry.second.size() > 1) calls.emplace_back([&group = entry.second] { group.abort(); });
  }
  at_once(calls);
}

}  // namespace titan::comm
