#pragma once

#include <map>
#include <set>
#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/comm/communicator_cuts.h"

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

}  // namespace titan::comm
