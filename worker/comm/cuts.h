#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// How the ranks' communicators are cut out of that of the world, and in what order: pure, and the same on every rank.
namespace titan::comm {

using RankGroups = std::vector<std::vector<int>>;  // Disjoint; global ranks, each group in its own order.

// To which ranks of its group a rank sends messages.
enum class Messages {
  kNone,
  kNeighbours,  // Those before and after it, the group being a ring.
  kAll,         // Every other one.
};

// One kind of traffic of all ranks: the groups of an axis, and of the axes that share its connections.
struct Connection {
  std::string name;   // Of the first of these axes.
  RankGroups groups;  // They make up the world.
  Messages messages = Messages::kNone;
};

// One cut through the world's communicator (ncclCommSplit), in which every rank takes part: each with the color of its
// group, ranks of no group with none.
struct Cut {
  size_t connection = 0;
  bool messages = false;  // From the first rank of each group, which is a pair, to the second. Else collectives.
  RankGroups groups;
};

struct CutPlan {
  std::optional<size_t> whole;  // The connection that is the world's own communicator: uncut.
  std::vector<Cut> cuts;        // In the order in which every rank makes them.
};

// Messages between two ranks have a way of their own for each direction (comm/cuda/nccl_backend.h); ways whose pairs do
// not touch come from one cut: at most three pairs of cuts for a ring, as many as it has ranks for a whole group.
CutPlan cut_plan(const std::vector<Connection>& connections);

// A rank's part in a cut.
struct CutPart {
  int color = -1;  // None (NCCL_SPLIT_NOCOLOR): it belongs to no group.
  int index = 0;   // In the group.
  int size = 0;
};
CutPart part_of(const RankGroups& groups, int rank);

// Where a group's keys are in the store: "fsdp/4", by name and first rank. Groups of one connection do not meet there.
std::string group_prefix(const Connection& connection, const CutPart& part);

}  // namespace titan::comm
