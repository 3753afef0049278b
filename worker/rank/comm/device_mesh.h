#pragma once

// Opens the process groups of one rank, one for each axis of the mesh, and plans which axes share connections.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/comm/communicator_cuts.h"
#include "worker/rank/comm/flight_recorder.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/comm/ledger.h"

namespace titan::comm {

struct ConnectionPlan {
  std::vector<Connection> connections;
  std::map<mesh::Axis, size_t> of_axis;  // Without an entry a rank is alone in its group of that axis.
};

// Axes with the same ranks share a connection only when one thread issues all their operations in an order that every
// rank follows. Pipeline messages follow each rank's own list of actions; asynchronous tensor parallelism issues from
// a thread of its own; and where operations of one connection run one after the other (NCCL), the exchanges inside a
// block must not queue behind the next block's weights.
//
// `messages`: on which axes ranks send to each other, besides a pipeline's, whose stages always do. `apart`: axes that
// share connections with each other alone, because their collectives are waited for at once and must not queue behind
// gathers that were issued ahead.
ConnectionPlan connection_plan(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes,
                               const std::map<mesh::Axis, Messages>& messages = {},
                               const std::set<mesh::Axis>& apart = {});

struct DeviceMeshOptions {
  int rank = 0;
  std::string host = "127.0.0.1";         // Where other ranks reach this one.
  c10::intrusive_ptr<c10d::Store> store;  // Null in a world of one.
  std::chrono::milliseconds timeout{300'000};
  // connection_plan()'s, so that the ways are open before the first message. Must be the same on every rank.
  std::map<mesh::Axis, Messages> messages;
  std::set<mesh::Axis> apart;                     // connection_plan()'s. Must be the same on every rank.
  bool shared_memory = true;                      // BackendOptions::shared_memory.
  int max_ctas = 0;                               // BackendOptions::max_ctas.
  int message_max_ctas = 0;                       // BackendOptions::message_max_ctas.
  FlightRecorder* recorder = nullptr;             // Null: nothing is recorded. Must outlive the mesh.
  std::shared_ptr<trace::Spans> spans = nullptr;  // Of this rank, for traces. Null: not in them.
};

// The process groups of one rank: one c10d group for each axis asked for whose size is above one. Axes that flatten to
// the same ranks have a group of their own each, so that the ledger tells them apart; the data-parallel ones among them
// share connections.
class DeviceMesh {
 public:
  // Blocks until all ranks of this rank's groups have joined. Throws PeerLost. `device` and `ledger` must outlive the
  // mesh.
  DeviceMesh(const mesh::Mesh& mesh, const std::set<mesh::Axis>& axes, device::Device& device, Ledger& ledger,
             const DeviceMeshOptions& options);

  const mesh::Mesh& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  // The axis must have been asked for.
  const Group& group(mesh::Axis axis) const;
  // Whether collectives and messages of a group of this rank go through shared memory.
  bool shares_memory() const { return shares_memory_; }
  // Groups of this rank that have connections of their own.
  size_t connections() const { return connections_; }

  void set_timeout(std::chrono::milliseconds timeout) const;
  // Breaks the connections, so that the other ranks notice at once. Gloo's cannot be broken: they last as long as the
  // process.
  void abort() const;

 private:
  const mesh::Mesh mesh_;
  const int rank_;
  bool shares_memory_ = false;
  size_t connections_ = 0;
  std::map<mesh::Axis, Group> groups_;
};

}  // namespace titan::comm
