#include "worker/comm/cuts.h"

#include <algorithm>
#include <utility>

namespace titan::comm {
namespace {

using Pairs = std::vector<std::pair<size_t, size_t>>;

// The edges of a ring of `size` ranks as lists of edges that do not touch each other.
std::vector<Pairs> matchings_of_ring(size_t size) {
  const size_t edges = size == 2 ? 1 : size;  // Between two ranks both edges are the same.
  std::vector<Pairs> matchings(std::min<size_t>(edges, 2 + size % 2));
  for (size_t first = 0; first < edges; ++first) {
    const bool odd_one = size % 2 == 1 && first + 1 == size;  // Touches an edge of either kind.
    matchings[odd_one ? 2 : first % 2].emplace_back(first, (first + 1) % size);
  }
  return matchings;
}

// All pairs of `size` ranks likewise: those whose sum leaves the same rest.
std::vector<Pairs> matchings_of_all(size_t size) {
  std::vector<Pairs> matchings(size);
  for (size_t first = 0; first < size; ++first) {
    for (size_t second = first + 1; second < size; ++second) {
      matchings[(first + second) % size].emplace_back(first, second);
    }
  }
  std::erase_if(matchings, [](const Pairs& pairs) { return pairs.empty(); });  // Of two ranks, one has none.
  return matchings;
}

void add_ways(size_t index, const Connection& connection, std::vector<Cut>& cuts) {
  const size_t size = connection.groups.front().size();
  const bool all = connection.messages == Messages::kAll;
  for (const Pairs& matching : all ? matchings_of_all(size) : matchings_of_ring(size)) {
    RankGroups up, down;
    for (const std::vector<int>& ranks : connection.groups) {
      for (const auto& [first, second] : matching) {
        up.push_back({ranks[first], ranks[second]});
        down.push_back({ranks[second], ranks[first]});
      }
    }
    cuts.push_back({.connection = index, .messages = true, .groups = std::move(up)});
    cuts.push_back({.connection = index, .messages = true, .groups = std::move(down)});
  }
}

// One group of all ranks in their own order.
bool is_world(const RankGroups& groups) {
  return groups.size() == 1 && std::is_sorted(groups.front().begin(), groups.front().end());
}

}  // namespace

CutPlan cut_plan(const std::vector<Connection>& connections) {
  CutPlan plan;
  for (size_t i = 0; i < connections.size(); ++i) {
    const Connection& connection = connections[i];
    if (!plan.whole && is_world(connection.groups)) {
      plan.whole = i;
    } else {
      plan.cuts.push_back({.connection = i, .messages = false, .groups = connection.groups});
    }
    if (connection.messages != Messages::kNone) add_ways(i, connection, plan.cuts);
  }
  return plan;
}

CutPart part_of(const RankGroups& groups, int rank) {
  for (size_t color = 0; color < groups.size(); ++color) {
    const auto found = std::find(groups[color].begin(), groups[color].end(), rank);
    if (found == groups[color].end()) continue;
    return {.color = static_cast<int>(color),
            .index = static_cast<int>(found - groups[color].begin()),
            .size = static_cast<int>(groups[color].size())};
  }
  return {};
}

std::string group_prefix(const Connection& connection, const CutPart& part) {
  return connection.name + "/" + std::to_string(connection.groups[static_cast<size_t>(part.color)].front());
}

}  // namespace titan::comm
