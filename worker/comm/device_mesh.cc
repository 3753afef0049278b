#include "worker/comm/device_mesh.h"

#include <functional>

#include "worker/comm/at_once.h"
#include "worker/comm/ledger_backend.h"
#include "worker/comm/recording_backend.h"
#include "worker/comm/shared_memory_backend.h"
#include "worker/comm/store.h"
#include "worker/comm/translate.h"

namespace titan::comm {
namespace {

// Axes with the same ranks share a connection only when one thread issues all their operations in an order that every
// rank follows. Pipeline messages follow each rank's own list of actions; asynchronous tensor parallelism issues from
// a thread of its own; and where operations of one connection run one after the other (NCCL), the exchanges inside a
// block must not queue behind the next block's weights.
enum class Flow { kWeightsAndReports, kPipeline, kTensor, kContext, kExperts };

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

DeviceMesh::DeviceMesh(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes, Device& device, Ledger& ledger,
                       const DeviceMeshOptions& options)
    : mesh_(mesh), rank_(options.rank) {
  std::map<std::pair<Flow, std::vector<int>>, c10::intrusive_ptr<c10d::Backend>> connections;
  for (const mesh::Axis axis : axes) {  // In the same order on every rank.
    std::vector<int> ranks = mesh.group(rank_, axis);
    const int index = mesh.index(rank_, axis);
    c10::intrusive_ptr<c10d::Backend> backend;
    if (ranks.size() > 1) {
      auto& connection = connections[{flow_of(axis), ranks}];
      if (!connection) {
        // Named by axis and first rank: the groups of one axis do not meet in the store.
        const std::string prefix = std::string(mesh::name(axis)) + "/" + std::to_string(ranks.front());
        connection = translate(std::string("group ") + mesh::name(axis), [&] {
          return device.make_backend({.store = prefixed(options.store, prefix),
                                      .rank = index,
                                      .size = static_cast<int>(ranks.size()),
                                      .host = options.host,
                                      .timeout = options.timeout,
                                      .shared_memory = options.shared_memory});
        });
      }
      shares_memory_ |= comm::shares_memory(*connection);
      backend = c10::make_intrusive<LedgerBackend>(connection, mesh::name(axis), ledger, static_cast<int>(axis));
      if (options.recorder != nullptr) {
        const int number = options.recorder->add_group(mesh::name(axis), ranks);
        backend = c10::make_intrusive<RecordingBackend>(std::move(backend), *options.recorder, number, options.timeout);
      }
    }
    groups_.emplace(axis, Group(mesh::name(axis), std::move(ranks), index, std::move(backend)));
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

// One after the other they could wait for ever: NCCL's abort waits for the group's kernel, which may wait for room on a
// device where another group's kernel waits for a rank that is gone.
void DeviceMesh::abort() const {
  std::vector<std::function<void()>> calls;
  for (const auto& entry : groups_) {
    if (entry.second.size() > 1) calls.emplace_back([&group = entry.second] { group.abort(); });
  }
  at_once(calls);
}

}  // namespace titan::comm
