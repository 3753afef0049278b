// The first rank that diverged is found from the last calls of all ranks: on random meshes, with random programs, for
// every way in which a rank can leave the others waiting.

#include "controller/job/divergence.h"

#include <functional>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rank_protocol/flight_tail.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

// One call of the program. Every rank makes it in its group along `axis`.
struct Instruction {
  int axis = 0;
  std::string operation;
  int64_t elements = 0;
  bool later = false;  // Waited for at the next call.
};

enum class Fault { kStops, kSkips, kOtherSize, kOtherOperation, kFreezes };

// Ranks of a mesh that run one program repeatedly, in lockstep as far as collectives require it. One rank fails at one
// call of one step. `reports_state`: ranks report whether they are inside a call; older versions and devices do not.
class Mesh {
 public:
  Mesh(std::vector<int> sizes, std::vector<Instruction> program, bool reports_state = false)
      : sizes_(std::move(sizes)), program_(std::move(program)), reports_state_(reports_state) {
    world_ = 1;
    for (const int size : sizes_) world_ *= size;
    for (int rank = 0; rank < world_; ++rank) {
      Rank& made = ranks_.emplace_back();
      made.flight.rank = rank;
      for (size_t axis = 0; axis <= sizes_.size(); ++axis) {
        const std::vector<int> members = members_of(rank, static_cast<int>(axis));
        const std::string name = axis == sizes_.size() ? "world" : absl::StrCat("axis", axis);
        made.flight.groups.push_back(
            {name, rank_protocol::format_rank_list(members), rank_protocol::group_key(name, members), 0});
      }
    }
  }

  // Each step ends with a collective of all ranks. Returns when no rank can continue.
  void run(int steps, Fault fault, int rank, int step, int at) {
    faulty_ = rank;
    bool moved = true;
    while (moved) {
      moved = false;
      for (int i = 0; i < world_; ++i) {
        while (advance(i, steps, fault, step, at)) moved = true;
      }
    }
  }
  std::vector<rank_protocol::RankFlight> flights() const {
    std::vector<rank_protocol::RankFlight> all;
    for (const Rank& rank : ranks_) all.push_back(rank.flight);
    return all;
  }
  bool is_over(int steps) const {
    for (const Rank& rank : ranks_) {
      if (rank.step < steps) return false;
    }
    return true;
  }
  int world() const { return world_; }
  int members(int axis) const {
    return axis == static_cast<int>(sizes_.size()) ? world_ : sizes_[static_cast<size_t>(axis)];
  }

 private:
  struct Rank {
    rank_protocol::RankFlight flight;
    int step = 0, at = 0;
    int64_t mark = 0, since_mark = 0;
    bool issued = false;              // The current call.
    std::vector<size_t> outstanding;  // Calls that are not waited for yet.
    bool stopped = false;
  };

  std::vector<int> members_of(int rank, int axis) const {
    std::vector<int> members;
    if (axis == static_cast<int>(sizes_.size())) {
      for (int i = 0; i < world_; ++i) members.push_back(i);
      return members;
    }
    int stride = 1;
    for (size_t i = static_cast<size_t>(axis) + 1; i < sizes_.size(); ++i) stride *= sizes_[i];
    const int size = sizes_[static_cast<size_t>(axis)];
    const int first = rank - rank / stride % size * stride;
    for (int i = 0; i < size; ++i) members.push_back(first + i * stride);
    return members;
  }

  bool all_joined(const rank_protocol::FlightCall& call, int rank) const {
    const std::vector<int> members = members_of(rank, call.group);
    for (const int member : members) {
      const rank_protocol::RankFlight& other = ranks_[static_cast<size_t>(member)].flight;
      if (other.groups[static_cast<size_t>(call.group)].issued < call.sequence) return false;
      for (const rank_protocol::FlightCall& theirs :
           other.calls) {  // A call that differs from another rank's never completes.
        if (theirs.group != call.group || theirs.sequence != call.sequence) continue;
        if (theirs.operation != call.operation || theirs.elements != call.elements) return false;
      }
    }
    return true;
  }

  bool wait_for_outstanding(int rank) {
    Rank& self = ranks_[static_cast<size_t>(rank)];
    for (const size_t place : self.outstanding) {
      rank_protocol::FlightCall& call = self.flight.calls[place];
      if (reports_state_) call.state = rank_protocol::CallState::kInside;
      if (!all_joined(call, rank)) return false;
      call.state = rank_protocol::CallState::kCompleted;
    }
    self.outstanding.clear();
    return true;
  }

  // Advances the rank by one action; returns false if it cannot.
  bool advance(int number, int steps, Fault fault, int step, int at) {
    Rank& self = ranks_[static_cast<size_t>(number)];
    if (self.stopped || self.step >= steps) return false;
    const bool is_later = !self.issued && !self.outstanding.empty();  // The last call is waited for later.
    if (!is_later && !wait_for_outstanding(number)) return false;
    const bool ends_step = self.at == static_cast<int>(program_.size());
    if (self.issued) {
      self.issued = false;
      ++self.at;
      if (!ends_step) return true;
      ++self.step;
      self.at = 0;
      ++self.mark;
      self.since_mark = 0;
      return true;
    }
    Instruction what = ends_step ? Instruction{static_cast<int>(sizes_.size()), "all_reduce", 4, false}
                                 : program_[static_cast<size_t>(self.at)];
    if (number == faulty_ && self.step == step && self.at == at) {
      if (fault == Fault::kStops) return !(self.stopped = true);
      if (fault == Fault::kSkips) return ++self.at > 0;
      if (fault == Fault::kOtherSize) what.elements += 8;
      if (fault == Fault::kOtherOperation) what.operation = "broadcast";
    }
    rank_protocol::FlightGroup& group = self.flight.groups[static_cast<size_t>(what.axis)];
    rank_protocol::FlightCall& call = self.flight.calls.emplace_back();
    call.group = what.axis;
    call.sequence = ++group.issued;
    call.operation = what.operation;
    call.type = "bfloat16";
    call.elements = what.elements;
    call.mark = self.mark;
    call.since_mark = self.since_mark++;
    call.created_ns = ++clock_;
    if (reports_state_) call.state = what.later ? rank_protocol::CallState::kPosted : rank_protocol::CallState::kInside;
    self.outstanding.push_back(self.flight.calls.size() - 1);
    if (fault == Fault::kFreezes && number == faulty_ && self.step == step && self.at == at) self.stopped = true;
    self.issued = !what.later;
    if (what.later) ++self.at;
    return true;
  }

  std::vector<int> sizes_;
  std::vector<Instruction> program_;
  const bool reports_state_;
  int world_ = 1, faulty_ = -1;
  std::vector<Rank> ranks_;
  int64_t clock_ = 0;
};

Mesh random_mesh(std::mt19937& random, int* program_size, bool reports_state) {
  const auto between = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  std::vector<int> sizes;
  for (int axes = between(1, 3), i = 0; i < axes; ++i) sizes.push_back(between(1, 4));
  const char* const operations[] = {"all_gather", "reduce_scatter", "all_reduce"};
  std::vector<Instruction> program;
  for (int calls = between(2, 20), i = 0; i < calls; ++i) {
    program.push_back({between(0, static_cast<int>(sizes.size()) - 1), operations[between(0, 2)], 16 * between(1, 3),
                       between(0, 4) == 0});
  }
  *program_size = static_cast<int>(program.size());
  return {sizes, program, reports_state};
}

TEST(DivergenceTest, NamesTheRankOnRandomMeshes) {
  std::mt19937 random(20'261'126);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  std::map<Fault, int> seen;
  for (int round = 0; round < 6'000; ++round) {
    int size = 0;
    const bool reports_state = round % 2 == 0;
    Mesh mesh = random_mesh(random, &size, reports_state);
    const auto fault = static_cast<Fault>(between(0, reports_state ? 4 : 3));
    const int rank = between(0, mesh.world() - 1), step = between(1, 3), at = between(0, size - 1);
    mesh.run(5, fault, rank, step, at);
    if (mesh.is_over(5) || mesh.world() == 1) continue;  // In a group of one, no other rank waits.
    ++seen[fault];
    const std::optional<Divergence> found = first_divergence(mesh.flights());
    ASSERT_TRUE(found) << "round " << round;
    EXPECT_EQ(found->ranks, std::vector<int>{rank})
        << "round " << round << ", fault " << static_cast<int>(fault) << ": " << found->message();
  }
  for (int fault = 0; fault < 5; ++fault) EXPECT_GT(seen[static_cast<Fault>(fault)], 300);
}

TEST(DivergenceTest, NothingIsReportedIfNoRankWaits) {
  EXPECT_FALSE(first_divergence({}));
  Mesh mesh({2, 2}, {{0, "all_gather", 16, false}, {1, "all_reduce", 16, false}});
  mesh.run(3, Fault::kStops, -1, 0, 0);
  ASSERT_TRUE(mesh.is_over(3));
  EXPECT_FALSE(first_divergence(mesh.flights()));
}

TEST(DivergenceTest, NamesTheFaultAndTheCollective) {
  const std::vector<Instruction> program = {{1, "all_gather", 16, false}, {0, "reduce_scatter", 32, false}};
  const auto message = [&](Fault fault, int at) {
    Mesh mesh({2, 3}, program);
    mesh.run(4, fault, 4, 2, at);
    const std::optional<Divergence> found = first_divergence(mesh.flights());
    return found ? found->message() : "nothing";
  };
  EXPECT_EQ(message(Fault::kStops, 0), "rank 4 never came to all_gather 3 of axis1 (ranks 3-5; 16 bfloat16)");
  EXPECT_EQ(message(Fault::kStops, 1), "rank 4 never came to reduce_scatter 3 of axis0 (ranks 1,4; 32 bfloat16)");
  EXPECT_EQ(message(Fault::kOtherSize, 0),
            "rank 4 came to all_gather 3 of axis1 (ranks 3-5; 16 bfloat16) with all_gather of 24 bfloat16");
  EXPECT_EQ(message(Fault::kOtherOperation, 1),
            "rank 4 came to reduce_scatter 3 of axis0 (ranks 1,4; 32 bfloat16) with broadcast of 32 bfloat16");
  EXPECT_EQ(message(Fault::kSkips, 0),
            "rank 4 skipped all_gather 3 of axis1 (ranks 3-5; 16 bfloat16) and continued with reduce_scatter of 32 "
            "bfloat16");
}

// Ranks without any recorded call are missing where others wait for them; if several are missing, all are named.
TEST(DivergenceTest, RanksOfOneCollectiveAreNamedTogether) {
  std::vector<rank_protocol::RankFlight> ranks(4);
  for (int i = 0; i < 4; ++i) {
    ranks[static_cast<size_t>(i)] = {i, {{"dp", "0-3", 1, i < 2 ? 7 : 6}}, {}};
    if (i < 2)
      ranks[static_cast<size_t>(i)].calls = {
          {0, 7, "all_reduce", "float32", 8, 5, 0, 100 + i, rank_protocol::CallState::kQueued}};
  }
  const std::optional<Divergence> found = first_divergence(ranks);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->message(), "ranks 2, 3 never came to all_reduce 7 of dp (ranks 0-3; 8 float32)");
}

// A receiver waits for its sender; a size that differs is the fault of one side.
TEST(DivergenceTest, PointToPointMessagesMatch) {
  std::vector<rank_protocol::RankFlight> ranks = {{0, {{"pp 0->1", "0-1", 1, 3}}, {}},
                                                  {1, {{"pp 0->1", "0-1", 1, 4}}, {}}};
  ranks[1].calls = {{0, 4, "recv", "bfloat16", 64, 2, 5, 900, rank_protocol::CallState::kQueued}};
  EXPECT_EQ(first_divergence(ranks)->message(), "rank 0 never came to recv 4 of pp 0->1 (ranks 0-1; 64 bfloat16)");
  ranks[0].groups[0].issued = 4;
  ranks[0].calls = {{0, 4, "send", "bfloat16", 64, 2, 5, 901, rank_protocol::CallState::kCompleted}};
  EXPECT_FALSE(first_divergence(ranks)) << "the send and its receive match";
}

// A pipeline stage posts receives before it needs them: a posted receive does not make it wait.
TEST(DivergenceTest, PostedReceivesAreNotWaits) {
  std::vector<rank_protocol::RankFlight> ranks = {{0, {{"pp 0->1", "0-1", 1, 5}, {"pp 1->0", "0-1", 2, 3}}, {}},
                                                  {1, {{"pp 0->1", "0-1", 1, 5}, {"pp 1->0", "0-1", 2, 2}}, {}}};
  ranks[0].calls = {{1, 3, "recv", "bfloat16", 64, 2, 9, 950, rank_protocol::CallState::kInside}};
  ranks[1].calls = {{0, 5, "recv", "bfloat16", 64, 2, 7, 900, rank_protocol::CallState::kPosted}};
  EXPECT_EQ(first_divergence(ranks)->message(), "rank 1 never came to recv 3 of pp 1->0 (ranks 0-1; 64 bfloat16)");
  // The same holds if the sender is inside a message for which the other side has only posted a receive.
  ranks[0].calls = {{0, 5, "send", "bfloat16", 64, 2, 9, 950, rank_protocol::CallState::kInside}};
  EXPECT_EQ(first_divergence(ranks)->ranks, std::vector<int>{1});
}

// Rank 0 was stopped inside a tp call that its partner had joined: the partner is not named although others wait for
// it.
TEST(DivergenceTest, HungCallNamesAllRanksInsideIt) {
  std::vector<rank_protocol::RankFlight> ranks(4);
  for (int i = 0; i < 4; ++i) {
    const char* const tp = i < 2 ? "0-1" : "2-3";
    const char* const fsdp = i % 2 == 0 ? "0,2" : "1,3";
    const uint64_t keys[] = {i < 2 ? 1u : 2u, i % 2 == 0 ? 3u : 4u};
    ranks[static_cast<size_t>(i)] = {i, {{"tp", tp, keys[0], 9}, {"fsdp", fsdp, keys[1], i < 2 ? 4 : 5}}, {}};
  }
  for (int i = 0; i < 2; ++i) {
    ranks[static_cast<size_t>(i)].calls = {
        {0, 9, "all_reduce", "float32", 8, 5, 3, 100 + i, rank_protocol::CallState::kInside}};
    ranks[static_cast<size_t>(i) + 2].calls = {
        {1, 5, "all_gather", "float32", 8, 5, 4, 90 + i, rank_protocol::CallState::kInside}};
  }
  const std::optional<Divergence> found = first_divergence(ranks);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->message(),
            "ranks 0, 1 are in all_reduce 9 of tp (ranks 0-1; 8 float32), which all ranks have entered, and do not "
            "return from it");
  const auto awaited = awaited_calls(ranks);
  EXPECT_EQ(awaited.at(0)->operation, "all_reduce");
  EXPECT_EQ(awaited.at(3)->operation, "all_gather");
}

// Nothing is known of rank 3: rank 2 waits for it and is not the cause of the hang.
TEST(DivergenceTest, RankThatWaitsForAnUnknownRankIsNotNamed) {
  std::vector<rank_protocol::RankFlight> ranks = {
      {0,
       {{"fsdp", "0,2", 3, 2}},
       {{0, 2, "reduce_scatter", "float32", 8, 5, 4, 80, rank_protocol::CallState::kInside}}},
      {2,
       {{"fsdp", "0,2", 3, 1}, {"tp", "2-3", 2, 2}},
       {{1, 2, "all_reduce", "float32", 8, 5, 3, 90, rank_protocol::CallState::kInside}}}};
  EXPECT_EQ(first_divergence(ranks)->message(),
            "rank 3, whose state is not known, is waited for in all_reduce 2 of tp (ranks 2-3; 8 float32)");
  ranks[1].calls[0].state = rank_protocol::CallState::kQueued;
  EXPECT_EQ(first_divergence(ranks)->ranks, std::vector<int>{3});
}

// Experts get different rows in each step, and all ranks validate at the same time: neither is a divergence.
TEST(DivergenceTest, DifferencesOnAllRanksBlameNobody) {
  const auto made = [](bool validates, bool rows_differ) {
    std::vector<rank_protocol::RankFlight> ranks(2);
    for (int i = 0; i < 2; ++i) {
      rank_protocol::RankFlight& rank = ranks[static_cast<size_t>(i)];
      rank = {i, {{"ep", "0-1", 1, 8}, {i == 0 ? "pp 0->1" : "pp 1->0", "0-1", i == 0 ? 2u : 3u, 1}}, {}};
      for (int64_t mark = 0; mark < 3; ++mark) {
        const int64_t rows = rows_differ ? 100 * mark + i : 100;
        const char* const second = validates && mark == 2 ? "broadcast" : "all_reduce";
        rank.calls.push_back({0, 2 * mark + 1, "all_to_all", "float32", rows, mark, 0, 10 * mark + i,
                              rank_protocol::CallState::kCompleted});
        rank.calls.push_back(
            {0, 2 * mark + 2, second, "float32", 4, mark, 1, 10 * mark + 5 + i, rank_protocol::CallState::kCompleted});
      }
    }
    // Each is inside a message that the other one never sends: a cycle.
    for (int i = 0; i < 2; ++i) {
      rank_protocol::RankFlight& rank = ranks[static_cast<size_t>(i)];
      rank_protocol::RankFlight& other = ranks[static_cast<size_t>(1 - i)];
      other.groups.push_back({rank.groups[1].name, "0-1", rank.groups[1].key, 0});
      rank.calls.push_back({1, 1, "recv", "float32", 64, 2, 2, 99 + i, rank_protocol::CallState::kInside});
    }
    return ranks;
  };
  EXPECT_FALSE(first_divergence(made(false, false)));
  EXPECT_FALSE(first_divergence(made(false, true))) << "rows of experts";
  EXPECT_FALSE(first_divergence(made(true, true))) << "all ranks validate";
}

// Two ranks disagree, and nothing shows which one is right.
TEST(DivergenceTest, UndecidableDisagreementNamesBothSides) {
  std::vector<rank_protocol::RankFlight> ranks(2);
  for (int i = 0; i < 2; ++i) {
    ranks[static_cast<size_t>(i)] = {i, {{"ep", "0-1", 1, 1}}, {}};
    ranks[static_cast<size_t>(i)].calls = {
        {0, 1, "all_to_all", i == 0 ? "Float" : "Long", 8, 0, 0, 10, rank_protocol::CallState::kInside}};
  }
  const std::optional<Divergence> found = first_divergence(ranks);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(
      found->message(),
      "ranks 0, 1 came to all_to_all 1 of ep (ranks 0-1; 8 Float) with all_to_all of 8 Float of rank 0, all_to_all "
      "of 8 Long of rank 1");
}

}  // namespace
}  // namespace titan::job
