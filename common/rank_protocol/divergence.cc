#include "common/rank_protocol/divergence.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace titan::rank_protocol {
namespace {

struct Made {
  const RankFlight* by = nullptr;
  const FlightCall* call = nullptr;
};

// All that is known of one group.
struct KnownGroup {
  const FlightGroup* group = nullptr;
  std::map<int, int64_t> issued;  // By member.
  std::map<int64_t, std::vector<Made>> by_sequence;
};

std::map<uint64_t, KnownGroup> groups_of(const std::vector<RankFlight>& ranks) {
  std::map<uint64_t, KnownGroup> groups;
  for (const RankFlight& rank : ranks) {
    for (const FlightGroup& one : rank.groups) {
      KnownGroup& group = groups[one.key];
      group.group = &one;
      group.issued[rank.rank] = one.issued;
    }
    for (const FlightCall& call : rank.calls) {
      groups[rank.groups[static_cast<size_t>(call.group)].key].by_sequence[call.sequence].push_back({&rank, &call});
    }
  }
  return groups;
}

// What members of one collective must agree on. Parts of an all-to-all differ in size.
using Shape = std::tuple<std::string, std::string, int64_t>;

Shape shape_of(const FlightCall& call) {
  const bool is_message = call.operation == "send" || call.operation == "recv";
  const bool any_size = call.operation == "all_to_all";
  return {is_message ? "message" : call.operation, call.type, any_size ? 0 : call.elements};
}

std::string described(const FlightCall& call) {
  return absl::StrCat(call.operation, " of ", call.elements, " ", call.type);
}

// A call as a rank of another place in the mesh, or of another step, makes it.
using Step = std::tuple<std::string, std::string, std::string, int64_t>;

// Of messages the other side has another name on each rank.
std::string axis_of(const FlightGroup& group) { return group.name.substr(0, group.name.find(' ')); }

Step step_of(const RankFlight& rank, const FlightCall& call) {
  return {axis_of(rank.groups[static_cast<size_t>(call.group)]), call.operation, call.type, call.elements};
}

// By mark: what the rank did between two meetings of all, whole ones alone, and what since the last.
std::map<int64_t, std::vector<const FlightCall*>> stretches_of(const RankFlight& rank) {
  std::map<int64_t, std::vector<const FlightCall*>> stretches;
  for (const FlightCall& call : rank.calls) stretches[call.mark].push_back(&call);
  if (!stretches.empty() && stretches.begin()->second.front()->since_mark != 0) stretches.erase(stretches.begin());
  return stretches;
}

// Where a rank's way between two meetings leaves the one that it took before. `present` may not be over.
struct Turn {
  const FlightCall* usual = nullptr;
  const FlightCall* present = nullptr;
};

std::optional<Turn> turn_between(const RankFlight& rank, const std::vector<const FlightCall*>& usual,
                                 const std::vector<const FlightCall*>& present) {
  for (size_t i = 0; i < std::min(present.size(), usual.size()); ++i) {
    if (step_of(rank, *present[i]) != step_of(rank, *usual[i])) return Turn{usual[i], present[i]};
  }
  return std::nullopt;
}

// The last one. Who went astray may have come to the next meeting before anybody noticed.
std::optional<Turn> turn_of(const RankFlight& rank) {
  const auto stretches = stretches_of(rank);
  if (stretches.size() < 2) return std::nullopt;
  const auto last = std::prev(stretches.end()), before = std::prev(last);
  if (before != stretches.begin()) {
    if (std::optional<Turn> turn = turn_between(rank, std::prev(before)->second, before->second)) return turn;
  }
  return turn_between(rank, before->second, last->second);
}

// How much speaks for those who came with one shape.
std::pair<size_t, int64_t> worth(const std::vector<Made>& made) {
  const auto as_before = [](const Made& one) { return !turn_of(*one.by); };
  return {made.size(), std::count_if(made.begin(), made.end(), as_before)};
}

// The earliest collective to which members came with different operations, types or sizes. Most are right; of as many
// on both sides, those who do what they did before.
std::optional<Divergence> first_mismatch(const std::map<uint64_t, KnownGroup>& groups) {
  std::optional<Divergence> first;
  for (const auto& [key, group] : groups) {
    for (const auto& [sequence, made] : group.by_sequence) {
      std::map<Shape, std::vector<Made>> shapes;
      for (const Made& one : made) shapes[shape_of(*one.call)].push_back(one);
      if (shapes.size() < 2) continue;
      const auto is_less = [](const auto& a, const auto& b) { return worth(a.second) < worth(b.second); };
      const auto most = std::max_element(shapes.begin(), shapes.end(), is_less);
      Divergence found{Divergence::Kind::kMismatch, {}, *most->second.front().call, *group.group, ""};
      for (const auto& [shape, others] : shapes) {
        if (shape == most->first) continue;
        for (const Made& other : others) found.ranks.push_back(other.by->rank);
        found.instead = described(*others.front().call);
      }
      std::sort(found.ranks.begin(), found.ranks.end());
      if (!first || found.call.created_ns < first->call.created_ns) first = std::move(found);
      break;  // Those after it follow from it.
    }
  }
  return first;
}

struct Awaited {
  uint64_t key = 0;
  const FlightCall* call = nullptr;  // In which somebody waits for it; the earliest such.
};

struct Waits {
  std::set<int> waiting;           // Ranks that wait,
  std::map<int, Awaited> awaited;  // and, by rank, those that are waited for.
};

Waits waits_of(const std::vector<RankFlight>& ranks, const std::map<uint64_t, KnownGroup>& groups) {
  Waits waits;
  for (const RankFlight& rank : ranks) {
    for (const FlightCall& call : rank.calls) {
      if (call.completed) continue;
      const uint64_t key = rank.groups[static_cast<size_t>(call.group)].key;
      for (const auto& [member, issued] : groups.at(key).issued) {
        if (issued >= call.sequence) continue;
        waits.waiting.insert(rank.rank);
        Awaited& awaited = waits.awaited[member];
        if (awaited.call == nullptr || call.created_ns < awaited.call->created_ns) awaited = {key, &call};
      }
    }
  }
  return waits;
}

// Who is waited for and waits for nobody.
std::optional<Divergence> first_missing(const Waits& waits, const std::map<uint64_t, KnownGroup>& groups) {
  const Awaited* first = nullptr;
  for (const auto& [rank, awaited] : waits.awaited) {
    if (waits.waiting.count(rank) > 0) continue;
    if (first == nullptr || awaited.call->created_ns < first->call->created_ns) first = &awaited;
  }
  if (first == nullptr) return std::nullopt;
  const KnownGroup& group = groups.at(first->key);
  std::vector<int> ranks;
  for (const auto& [member, issued] : group.issued) {
    if (issued < first->call->sequence && waits.waiting.count(member) == 0) ranks.push_back(member);
  }
  return Divergence{Divergence::Kind::kMissing, ranks, *first->call, *group.group, ""};
}

// In a circle: whoever goes another way than before.
std::optional<Divergence> first_skipped(const std::vector<RankFlight>& ranks, const Waits& waits) {
  std::optional<Divergence> first;
  for (const RankFlight& rank : ranks) {
    if (waits.waiting.count(rank.rank) == 0) continue;
    const std::optional<Turn> turn = turn_of(rank);
    if (!turn || (first && first->call.created_ns <= turn->present->created_ns)) continue;
    const FlightGroup& group = rank.groups[static_cast<size_t>(turn->usual->group)];
    first = Divergence{Divergence::Kind::kSkipped, {rank.rank}, *turn->usual, group, described(*turn->present)};
    first->call.sequence = group.issued + 1;
    first->call.created_ns = turn->present->created_ns;
  }
  return first;
}

}  // namespace

std::string Divergence::message() const {
  const std::string who = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
  const std::string what = absl::StrCat(call.operation, " ", call.sequence, " of ", group.name, " (ranks ",
                                        group.members, "; ", call.elements, " ", call.type, ")");
  switch (kind) {
    case Kind::kMissing:
      return absl::StrCat(who, " never came to ", what);
    case Kind::kMismatch:
      return absl::StrCat(who, " came to ", what, " with ", instead);
    case Kind::kSkipped:
      return absl::StrCat(who, " left out ", what, " and went on to ", instead);
  }
  return "";
}

std::optional<Divergence> first_divergence(const std::vector<RankFlight>& ranks) {
  const std::map<uint64_t, KnownGroup> groups = groups_of(ranks);
  if (std::optional<Divergence> mismatch = first_mismatch(groups)) return mismatch;
  const Waits waits = waits_of(ranks, groups);
  if (std::optional<Divergence> found = first_missing(waits, groups)) return found;
  return first_skipped(ranks, waits);
}

}  // namespace titan::rank_protocol
