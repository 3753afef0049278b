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
  kRing,        // The next one, the group being a ring. Two ranks pair their calls: what one sends the other receives.
  kNeighbours,  // The previous and the next one; each rank in an order of its own.
  kAll,         // Every other one. Two ranks pair their calls.
};

// One kind of traffic of all ranks: the groups of an axis, and of the axes that share its connections.
struct Connection {
  std::string name;   // Of the first of these axes.
  RankGroups groups;  // They make up the world.
  Messages messages = Messages::kNone;
};

// What a communicator carries.
enum class Carries {
  kCollectives,
  kOneWay,    // Messages from the first rank of a pair to the second.
  kBothWays,  // Messages of a pair that pairs its calls.
};

// One cut through the world's communicator (ncclCommSplit), in which every rank takes part: each with the color of its
// group, ranks of no group with none.
struct Cut {
  size_t connection = 0;
  Carries carries = Carries::kCollectives;
  RankGroups groups;  // Pairs, if it carries messages.
};

struct CutPlan {
  std::optional<size_t> whole;  // The connection that is the world's own communicator: uncut.
  std::vector<Cut> cuts;        // In the order in which every rank makes them.
};

// LibTorch gives communicators their streams in turn from a pool of this many. Two communicators on one stream would
// also share its order, so that a message could wait for another one's receiver.
inline constexpr int kMostCommunicators = 32;

// Messages between two ranks have a communicator for each direction (comm/split_groups.h). Where that makes more than
// kMostCommunicators for a rank, pairs that pair their calls share one, which then sends and receives by turns. Pairs
// that do not touch come from one cut: at most three or six cuts for a ring, and one or two for each rank of a whole
// group.
CutPlan cut_plan(const std::vector<Connection>& connections);

// How many communicators a rank has, the world's included.
int communicators_of(const CutPlan& plan, int rank);

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
