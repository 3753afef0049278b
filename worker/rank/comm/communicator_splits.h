#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Plans how the world's communicator is split into those of the groups, and in which order. Pure, and the same on every
// rank.
namespace titan::comm {

// Disjoint groups of global ranks; the ranks of a group keep their order.
using RankGroups = std::vector<std::vector<int>>;

// The ranks of its group to which a rank sends messages.
enum class Messages {
  kNone,
  kRing,  // To the next rank of the ring. In a group of two the calls pair: one rank sends what the other receives.
  kNeighbours,  // To the previous and the next rank, in an order that each rank chooses.
  kAll,         // To every other rank. The calls of two ranks pair.
};

// One kind of traffic of all ranks: the groups of an axis and of the axes that share its connections.
struct Connection {
  std::string name;   // Name of the first of these axes.
  RankGroups groups;  // They cover the world.
  Messages messages = Messages::kNone;
};

// Kind of traffic on a communicator.
enum class Carries {
  kCollectives,
  kOneWay,    // Messages from the first rank of a pair to the second.
  kBothWays,  // Messages in both directions, between two ranks whose calls pair.
};

// One split of the world's communicator (ncclCommSplit). Every rank takes part: with the color of its group, or without
// a color if it is in no group.
struct CommSplit {
  size_t connection = 0;
  Carries carries = Carries::kCollectives;
  RankGroups groups;  // Pairs, for messages.
};

struct CommSplitPlan {
  std::optional<size_t> whole;    // The connection that uses the world's communicator itself.
  std::vector<CommSplit> splits;  // In the order in which every rank makes them.
};

// LibTorch assigns streams to communicators round-robin from a pool of this size. Two communicators on one stream would
// also share its order, so a message could wait for the receiver of another one.
inline constexpr int kMaxCommunicators = 32;

// Plans the splits for these connections. Messages between two ranks use one communicator per direction
// (comm/split_groups.h). If a rank would then have more than kMaxCommunicators, pairs whose calls pair share one
// communicator for both directions. Pairs without a common rank are made by one split: at most three splits for
// Messages::kRing, six for kNeighbours, and two per rank of a group for kAll.
CommSplitPlan comm_split_plan(const std::vector<Connection>& connections);

// Returns the number of communicators of a rank, including the world's.
int communicators_of(const CommSplitPlan& plan, int rank);

// A rank's part in a split.
struct CommSplitPart {
  int color = -1;  // -1 (NCCL_SPLIT_NOCOLOR): the rank is in no group.
  int index = 0;   // In the group.
  int size = 0;
};
CommSplitPart part_of(const RankGroups& groups, int rank);

// Returns the prefix of a group's keys in the store, its name and first rank: "fsdp/4". Groups of one connection have
// different prefixes.
std::string group_prefix(const Connection& connection, const CommSplitPart& part);

}  // namespace titan::comm
