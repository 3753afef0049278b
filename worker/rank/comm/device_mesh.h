#pragma once

// Opens the process groups of one rank, one per axis of the mesh, and plans which axes share connections.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/comm/flight_recorder.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/comm/ledger.h"

namespace titan::comm {

struct ConnectionPlan {
  std::vector<Connection> connections;
  std::map<mesh::Axis, size_t> of_axis;  // Index in `connections`. No entry: the axis has size 1.
};

// Plans the connections of all groups. Axes with the same ranks share a connection only if one thread issues all their
// operations in an order that every rank follows. Pipeline messages follow each rank's list of actions, asynchronous
// tensor parallelism issues from a separate thread, and where the operations of a connection run one after another
// (NCCL), the exchanges inside a block must not wait for the next block's weights.
//
// `messages`: axes on which ranks send to each other; pipeline stages always do. `apart`: axes that share connections
// only with each other, because their collectives are awaited immediately and must not queue behind prefetched gathers.
ConnectionPlan connection_plan(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes,
                               const std::map<mesh::Axis, Messages>& messages = {},
                               const std::set<mesh::Axis>& apart = {});

struct DeviceMeshOptions {
  int rank = 0;
  std::string host = "127.0.0.1";         // Address at which other ranks reach this one.
  c10::intrusive_ptr<c10d::Store> store;  // Null if the world has one rank.
  std::chrono::milliseconds timeout{300'000};
  // See connection_plan(); channels are opened before the first message. Must be the same on every rank.
  std::map<mesh::Axis, Messages> messages;
  std::set<mesh::Axis> apart;                            // See connection_plan(). Must be the same on every rank.
  bool shared_memory = true;                             // See BackendOptions::shared_memory.
  int max_ctas = 0;                                      // See BackendOptions::max_ctas.
  int message_max_ctas = 0;                              // See BackendOptions::message_max_ctas.
  FlightRecorder* recorder = nullptr;                    // Null: nothing is recorded. Must outlive the mesh.
  std::shared_ptr<trace::SpanRecorder> spans = nullptr;  // Spans of this rank, for traces. Null: not traced.
};

// The process groups of one rank: one c10d group per requested axis with more than one rank. Axes with the same ranks
// have separate groups, so that the ledger distinguishes them; some of them share connections (connection_plan()).
class DeviceMesh {
 public:
  // Blocks until all ranks of this rank's groups have joined, unless ranks are threads. Throws PeerLost. `device` and
  // `ledger` must outlive the mesh.
  DeviceMesh(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes, device::Device& device, Ledger& ledger,
             const DeviceMeshOptions& options);

  const mesh::Mesh& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  // The group of a requested axis; throws for any other axis.
  const Group& group(mesh::Axis axis) const;
  // Returns whether a group of this rank uses shared memory for collectives and messages.
  bool shares_memory() const { return shares_memory_; }
  // Returns the number of connections that this rank's groups use.
  size_t connections() const { return connections_; }

  void set_timeout(std::chrono::milliseconds timeout) const;
  // Breaks the connections, so that the other ranks notice at once. Gloo connections cannot be broken: they last as
  // long as the process.
  void abort() const;

 private:
  const mesh::Mesh mesh_;
  const int rank_;
  bool shares_memory_ = false;
  size_t connections_ = 0;
  std::map<mesh::Axis, Group> groups_;
};

}  // namespace titan::comm
