#include "worker/rank/comm/communicator_splits.h"

#include <algorithm>
#include <map>
#include <utility>

namespace titan::comm {
namespace {

using Pairs = std::vector<std::pair<size_t, size_t>>;

// Divides the edges of a ring of `size` ranks into lists of edges without a common rank.
std::vector<Pairs> matchings_of_ring(size_t size) {
  const size_t edges = size == 2 ? 1 : size;  // Between two ranks both edges are the same.
  std::vector<Pairs> matchings(std::min<size_t>(edges, 2 + size % 2));
  for (size_t first = 0; first < edges; ++first) {
    const bool odd_one = size % 2 == 1 && first + 1 == size;  // It shares a rank with an edge of each kind.
    matchings[odd_one ? 2 : first % 2].emplace_back(first, (first + 1) % size);
  }
  return matchings;
}

// Divides all pairs of `size` ranks the same way: by the sum of their indices modulo `size`.
std::vector<Pairs> matchings_of_all(size_t size) {
  std::vector<Pairs> matchings(size);
  for (size_t first = 0; first < size; ++first) {
    for (size_t second = first + 1; second < size; ++second) {
      matchings[(first + second) % size].emplace_back(first, second);
    }
  }
  std::erase_if(matchings, [](const Pairs& pairs) { return pairs.empty(); });  // With two ranks one list is empty.
  return matchings;
}

// Makes a split of these pairs in every group of a connection, from the second rank to the first if `reversed`.
CommSplit split_of(size_t index, const Connection& connection, const Pairs& pairs, Carries carries,
                   bool reversed = false) {
  CommSplit cut{.connection = index, .carries = carries, .groups = {}};
  for (const std::vector<int>& ranks : connection.groups) {
    for (const auto& [first, second] : pairs) {
      const int from = ranks[first], to = ranks[second];
      cut.groups.push_back(reversed ? std::vector<int>{to, from} : std::vector<int>{from, to});
    }
  }
  return cut;
}

void add_channels(size_t index, const Connection& connection, bool share, std::vector<CommSplit>& splits) {
  const size_t size = connection.groups.front().size();
  const Messages messages = connection.messages;
  const bool paired = messages == Messages::kAll || (messages == Messages::kRing && size == 2);
  for (const Pairs& pairs : messages == Messages::kAll ? matchings_of_all(size) : matchings_of_ring(size)) {
    if (paired && share) {
      splits.push_back(split_of(index, connection, pairs, Carries::kBothWays));
      continue;
    }
    splits.push_back(split_of(index, connection, pairs, Carries::kOneWay));
    if (messages == Messages::kRing && size > 2) continue;  // Nothing is sent back along such an edge.
    splits.push_back(split_of(index, connection, pairs, Carries::kOneWay, /*reversed=*/true));
  }
}

// One group of all ranks in ascending order.
bool is_world(const RankGroups& groups) {
  return groups.size() == 1 && std::is_sorted(groups.front().begin(), groups.front().end());
}

CommSplitPlan comm_split_plan(const std::vector<Connection>& connections, bool share) {
  CommSplitPlan plan;
  for (size_t i = 0; i < connections.size(); ++i) {
    const Connection& connection = connections[i];
    if (!plan.whole && is_world(connection.groups)) {
      plan.whole = i;
    } else {
      plan.splits.push_back({.connection = i, .carries = Carries::kCollectives, .groups = connection.groups});
    }
    if (connection.messages != Messages::kNone) add_channels(i, connection, share, plan.splits);
  }
  return plan;
}

// Returns the number of communicators of the rank that has the most.
int max_communicators(const CommSplitPlan& plan) {
  std::map<int, int> of_rank;
  for (const CommSplit& cut : plan.splits) {
    for (const std::vector<int>& ranks : cut.groups) {
      for (const int rank : ranks) ++of_rank[rank];
    }
  }
  int most = 0;
  for (const auto& [rank, count] : of_rank) most = std::max(most, count);
  return most + 1;
}

}  // namespace

CommSplitPlan comm_split_plan(const std::vector<Connection>& connections) {
  CommSplitPlan plan = comm_split_plan(connections, /*share=*/false);
  return max_communicators(plan) <= kMaxCommunicators ? plan : comm_split_plan(connections, /*share=*/true);
}

int communicators_of(const CommSplitPlan& plan, int rank) {
  int count = 1;
  for (const CommSplit& cut : plan.splits) count += part_of(cut.groups, rank).color >= 0;
  return count;
}

CommSplitPart part_of(const RankGroups& groups, int rank) {
  for (size_t color = 0; color < groups.size(); ++color) {
    const auto found = std::find(groups[color].begin(), groups[color].end(), rank);
    if (found == groups[color].end()) continue;
    return {.color = static_cast<int>(color),
            .index = static_cast<int>(found - groups[color].begin()),
            .size = static_cast<int>(groups[color].size())};
  }
  return {};
}

std::string group_prefix(const Connection& connection, const CommSplitPart& part) {
  return connection.name + "/" + std::to_string(connection.groups[static_cast<size_t>(part.color)].front());
}

}  // namespace titan::comm
