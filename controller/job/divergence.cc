#include "controller/job/divergence.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rank_protocol/flight_tail.h"

namespace titan::job {
namespace {

// A call, and the rank that made it.
struct Made {
  const rank_protocol::RankFlight* by = nullptr;
  const rank_protocol::FlightCall* call = nullptr;
};

// Everything that is known about one group.
struct KnownGroup {
  const rank_protocol::FlightGroup* group = nullptr;
  std::map<int, int64_t> issued;  // Newest issued call, by member. Only members of which something is known.
  std::vector<int> unknown;       // Members of which nothing is known.
  int64_t all_issued = 0;         // Newest call to which all members have come. 0 if some are unknown.
  std::map<int64_t, std::vector<Made>> by_sequence;
};

std::map<uint64_t, KnownGroup> groups_of(const std::vector<rank_protocol::RankFlight>& ranks) {
  std::map<uint64_t, KnownGroup> groups;
  for (const rank_protocol::RankFlight& rank : ranks) {
    for (const rank_protocol::FlightGroup& one : rank.groups) {
      KnownGroup& group = groups[one.key];
      group.group = &one;
      group.issued[rank.rank] = one.issued;
    }
    for (const rank_protocol::FlightCall& call : rank.calls) {
      groups[rank.groups[static_cast<size_t>(call.group)].key].by_sequence[call.sequence].push_back({&rank, &call});
    }
  }
  for (auto& [key, group] : groups) {
    for (const int member : rank_protocol::parse_rank_list(group.group->members)) {
      if (group.issued.count(member) == 0) group.unknown.push_back(member);
    }
    const auto is_less = [](const auto& a, const auto& b) { return a.second < b.second; };
    if (group.unknown.empty())
      group.all_issued = std::min_element(group.issued.begin(), group.issued.end(), is_less)->second;
  }
  return groups;
}

// Operation, type and size, on which members of one collective must agree. The parts of an all-to-all differ in size.
using Shape = std::tuple<std::string, std::string, int64_t>;

Shape shape_of(const rank_protocol::FlightCall& call) {
  const bool is_message = call.operation == "send" || call.operation == "recv";
  const bool any_size = call.operation == "all_to_all";
  return {is_message ? "message" : call.operation, call.type, any_size ? 0 : call.elements};
}

std::string described(const rank_protocol::FlightCall& call) {
  return absl::StrCat(call.operation, " of ", call.elements, " ", call.type);
}

// A call without what depends on the rank's place in the mesh or on the step.
using Step = std::tuple<std::string, std::string, std::string, int64_t>;

// For messages, the other side's name differs from rank to rank.
std::string axis_of(const rank_protocol::FlightGroup& group) { return group.name.substr(0, group.name.find(' ')); }

// The number of rows for the experts differs in each step.
Step step_of(const rank_protocol::RankFlight& rank, const rank_protocol::FlightCall& call) {
  const auto [operation, type, elements] = shape_of(call);
  return {axis_of(rank.groups[static_cast<size_t>(call.group)]), call.operation, type, elements};
}

// Returns, by mark, what the rank did between two meetings of all ranks, and what it did since the last one. Leaves out
// an incomplete first stretch.
std::map<int64_t, std::vector<const rank_protocol::FlightCall*>> stretches_of(const rank_protocol::RankFlight& rank) {
  std::map<int64_t, std::vector<const rank_protocol::FlightCall*>> stretches;
  for (const rank_protocol::FlightCall& call : rank.calls) stretches[call.mark].push_back(&call);
  if (!stretches.empty() && stretches.begin()->second.front()->since_mark != 0) stretches.erase(stretches.begin());
  return stretches;
}

// Where a rank departs from its calls between two earlier meetings. The present stretch may be incomplete.
struct Deviation {
  const rank_protocol::FlightCall* usual = nullptr;
  const rank_protocol::FlightCall* present = nullptr;
};

std::optional<Deviation> deviation_between(const rank_protocol::RankFlight& rank,
                                           const std::vector<const rank_protocol::FlightCall*>& usual,
                                           const std::vector<const rank_protocol::FlightCall*>& present) {
  for (size_t i = 0; i < std::min(present.size(), usual.size()); ++i) {
    if (step_of(rank, *present[i]) != step_of(rank, *usual[i])) return Deviation{usual[i], present[i]};
  }
  return std::nullopt;
}

// Returns the last deviation. A rank that went astray may have come to the next meeting before anybody noticed.
std::optional<Deviation> deviation_of(const rank_protocol::RankFlight& rank) {
  const auto stretches = stretches_of(rank);
  if (stretches.size() < 2) return std::nullopt;
  const auto last = std::prev(stretches.end()), before = std::prev(last);
  if (before != stretches.begin()) {
    if (std::optional<Deviation> turn = deviation_between(rank, std::prev(before)->second, before->second)) return turn;
  }
  return deviation_between(rank, before->second, last->second);
}

// Returns the ranks that deviated where most did not: a validation is a deviation of all ranks.
std::map<int, Deviation> deviations_of(const std::vector<rank_protocol::RankFlight>& ranks) {
  std::map<int, Deviation> turns;
  std::map<int64_t, size_t> at_mark;
  for (const rank_protocol::RankFlight& rank : ranks) {
    const std::optional<Deviation> turn = deviation_of(rank);
    if (!turn) continue;
    turns[rank.rank] = *turn;
    ++at_mark[turn->present->mark];
  }
  std::erase_if(turns, [&](const auto& one) { return 2 * at_mark[one.second.present->mark] > ranks.size(); });
  return turns;
}

// Returns the support for one shape: the number of ranks that came with it, and how many of them did not deviate.
std::pair<size_t, int64_t> worth(const std::vector<Made>& made, const std::map<int, Deviation>& turns) {
  const auto as_before = [&](const Made& one) { return turns.count(one.by->rank) == 0; };
  return {made.size(), std::count_if(made.begin(), made.end(), as_before)};
}

std::string named(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

std::vector<int> ranks_of(const std::vector<Made>& made) {
  std::vector<int> ranks;
  for (const Made& one : made) ranks.push_back(one.by->rank);
  return ranks;
}

using Shapes = std::map<Shape, std::vector<Made>>;

// The majority is right. Between equally many ranks, those that do what they did before are right. If nothing decides
// it, all of them differ.
Divergence mismatch_of(const KnownGroup& group, const Shapes& shapes, const std::map<int, Deviation>& turns) {
  const auto worth_of = [&turns](const auto& one) { return worth(one.second, turns); };
  const auto is_less = [&](const auto& a, const auto& b) { return worth_of(a) < worth_of(b); };
  const auto most = std::max_element(shapes.begin(), shapes.end(), is_less);
  const auto best = worth_of(*most);
  const bool is_one =
      std::count_if(shapes.begin(), shapes.end(), [&](const auto& one) { return worth_of(one) == best; }) == 1;
  Divergence found{Divergence::Kind::kMismatch, {}, *most->second.front().call, *group.group, ""};
  for (const auto& [shape, made] : shapes) {
    if (is_one && shape == most->first) continue;
    const std::vector<int> ranks = ranks_of(made);
    found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
    const std::string what = described(*made.front().call);
    found.instead =
        is_one ? what : absl::StrCat(found.instead, found.instead.empty() ? "" : ", ", what, " of ", named(ranks));
  }
  std::sort(found.ranks.begin(), found.ranks.end());
  return found;
}

// Returns the earliest collective to which members came with different operations, types or sizes.
std::optional<Divergence> first_mismatch(const std::map<uint64_t, KnownGroup>& groups,
                                         const std::map<int, Deviation>& turns) {
  std::optional<Divergence> first;
  for (const auto& [key, group] : groups) {
    for (const auto& [sequence, made] : group.by_sequence) {
      Shapes shapes;
      for (const Made& one : made) shapes[shape_of(*one.call)].push_back(one);
      if (shapes.size() < 2) continue;
      Divergence found = mismatch_of(group, shapes, turns);
      if (!first || found.call.created_ns < first->call.created_ns) first = std::move(found);
      break;  // Later mismatches follow from it.
    }
  }
  return first;
}

struct Awaited {
  uint64_t key = 0;
  const rank_protocol::FlightCall* call = nullptr;  // The earliest call in which somebody waits for the rank.

  void see(uint64_t of, const rank_protocol::FlightCall& one) {
    if (call == nullptr || one.created_ns < call->created_ns) *this = {of, &one};
  }
};

struct Waits {
  std::set<int> waiting;           // Ranks that wait.
  std::map<int, Awaited> awaited;  // By rank: those that are awaited and wait for nobody.
  std::map<int, Awaited> unknown;  // By rank: those that are awaited and of which nothing is known.
  // By rank: the call that it is inside of and to which all came, if nobody holds it up.
  std::map<int, Awaited> inside;
};

// Returns the members that have not issued a call, or have only posted it: the call may need them for its progress.
std::vector<int> absent(const KnownGroup& group, int64_t sequence) {
  std::vector<int> ranks;
  for (const auto& [member, issued] : group.issued) {
    if (issued < sequence) ranks.push_back(member);
  }
  const auto made = group.by_sequence.find(sequence);
  if (made == group.by_sequence.end()) return ranks;
  for (const Made& one : made->second) {
    if (one.call->state == rank_protocol::CallState::kPosted) ranks.push_back(one.by->rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool holds_up(const rank_protocol::FlightCall& call) {
  return call.state == rank_protocol::CallState::kInside || call.state == rank_protocol::CallState::kQueued;
}

Waits waits_of(const std::vector<rank_protocol::RankFlight>& ranks, const std::map<uint64_t, KnownGroup>& groups) {
  Waits waits;
  std::set<int> held_up;  // Ranks that others hold up. Another call that they are inside of may only wait for that.
  std::map<std::pair<uint64_t, int64_t>, Awaited> held;  // By group and sequence: calls in which somebody waits.
  for (const rank_protocol::RankFlight& rank : ranks) {
    for (const rank_protocol::FlightCall& call : rank.calls) {
      if (!holds_up(call)) continue;
      const uint64_t key = rank.groups[static_cast<size_t>(call.group)].key;
      const bool all_came = call.sequence <= groups.at(key).all_issued;
      if (all_came && call.state != rank_protocol::CallState::kInside) continue;  // The device may have finished it.
      waits.waiting.insert(rank.rank);
      held[{key, call.sequence}].see(key, call);
      if (all_came) waits.inside[rank.rank].see(key, call);
      if (!all_came) held_up.insert(rank.rank);
    }
  }
  for (const auto& [place, one] : held) {
    const KnownGroup& group = groups.at(one.key);
    for (const int member : absent(group, one.call->sequence)) waits.awaited[member].see(one.key, *one.call);
    for (const int member : group.unknown) waits.unknown[member].see(one.key, *one.call);
  }
  std::erase_if(waits.awaited, [&](const auto& one) { return waits.waiting.count(one.first) > 0; });
  std::erase_if(waits.inside, [&](const auto& one) { return held_up.count(one.first) > 0; });
  return waits;
}

const Awaited* earliest(const std::map<int, Awaited>& of) {
  const Awaited* first = nullptr;
  for (const auto& [rank, awaited] : of) {
    if (first == nullptr || awaited.call->created_ns < first->call->created_ns) first = &awaited;
  }
  return first;
}

// Returns the awaited ranks that wait for nobody.
std::optional<Divergence> first_missing(const Waits& waits, const std::map<uint64_t, KnownGroup>& groups) {
  const Awaited* const first = earliest(waits.awaited);
  if (first == nullptr) return std::nullopt;
  const KnownGroup& group = groups.at(first->key);
  std::vector<int> ranks = absent(group, first->call->sequence);
  std::erase_if(ranks, [&](int rank) { return waits.waiting.count(rank) > 0; });
  return Divergence{Divergence::Kind::kMissing, ranks, *first->call, *group.group, ""};
}

// Returns the ranks in `of` that have the earliest call.
std::optional<Divergence> first_of(const std::map<int, Awaited>& of, Divergence::Kind kind,
                                   const std::map<uint64_t, KnownGroup>& groups) {
  const Awaited* const first = earliest(of);
  if (first == nullptr) return std::nullopt;
  std::vector<int> ranks;
  for (const auto& [rank, awaited] : of) {
    if (awaited.key == first->key && awaited.call->sequence == first->call->sequence) ranks.push_back(rank);
  }
  return Divergence{kind, ranks, *first->call, *groups.at(first->key).group, ""};
}

// For ranks that wait in a circle: returns the one that deviated first.
std::optional<Divergence> first_skipped(const std::vector<rank_protocol::RankFlight>& ranks, const Waits& waits,
                                        const std::map<int, Deviation>& turns) {
  std::optional<Divergence> first;
  for (const rank_protocol::RankFlight& rank : ranks) {
    const auto turn = turns.find(rank.rank);
    if (turn == turns.end() || waits.waiting.count(rank.rank) == 0) continue;
    const auto& [usual, present] = turn->second;
    if (first && first->call.created_ns <= present->created_ns) continue;
    const rank_protocol::FlightGroup& group = rank.groups[static_cast<size_t>(usual->group)];
    first = Divergence{Divergence::Kind::kSkipped, {rank.rank}, *usual, group, described(*present)};
    first->call.sequence = group.issued + 1;
    first->call.created_ns = present->created_ns;
  }
  return first;
}

}  // namespace

std::string Divergence::message() const {
  const std::string who = named(ranks);
  const std::string what = absl::StrCat(call.operation, " ", call.sequence, " of ", group.name, " (ranks ",
                                        group.members, "; ", call.elements, " ", call.type, ")");
  switch (kind) {
    case Kind::kMissing:
      return absl::StrCat(who, " never came to ", what);
    case Kind::kMismatch:
      return absl::StrCat(who, " came to ", what, " with ", instead);
    case Kind::kSkipped:
      return absl::StrCat(who, " skipped ", what, " and continued with ", instead);
    case Kind::kUnfinished:
      return absl::StrCat(who, ranks.size() == 1 ? " is" : " are", " in ", what, ", which all ranks have entered, and ",
                          ranks.size() == 1 ? "does" : "do", " not return from it");
    case Kind::kUnknown:
      return absl::StrCat(who, ", whose state is not known, ", ranks.size() == 1 ? "is" : "are", " waited for in ",
                          what);
  }
  return "";
}

std::optional<Divergence> first_divergence(const std::vector<rank_protocol::RankFlight>& ranks) {
  const std::map<uint64_t, KnownGroup> groups = groups_of(ranks);
  const std::map<int, Deviation> turns = deviations_of(ranks);
  if (std::optional<Divergence> mismatch = first_mismatch(groups, turns)) return mismatch;
  const Waits waits = waits_of(ranks, groups);
  if (std::optional<Divergence> found = first_missing(waits, groups)) return found;
  if (std::optional<Divergence> found = first_of(waits.inside, Divergence::Kind::kUnfinished, groups)) return found;
  if (std::optional<Divergence> found = first_skipped(ranks, waits, turns)) return found;
  return first_of(waits.unknown, Divergence::Kind::kUnknown, groups);
}

std::map<int, const rank_protocol::FlightCall*> awaited_calls(const std::vector<rank_protocol::RankFlight>& ranks) {
  const std::map<uint64_t, KnownGroup> groups = groups_of(ranks);
  std::map<int, const rank_protocol::FlightCall*> awaited;
  for (const rank_protocol::RankFlight& rank : ranks) {
    const rank_protocol::FlightCall* inside = nullptr;
    for (const rank_protocol::FlightCall& call : rank.calls) {
      if (!holds_up(call)) continue;
      if (call.sequence > groups.at(rank.groups[static_cast<size_t>(call.group)].key).all_issued) {
        awaited.try_emplace(rank.rank, &call);
        break;
      }
      if (call.state == rank_protocol::CallState::kInside) inside = &call;
    }
    if (inside != nullptr) awaited.try_emplace(rank.rank, inside);
  }
  return awaited;
}

}  // namespace titan::job
