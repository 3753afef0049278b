// A rank's last collective calls, as its node reads them: complete, the newest ones, and never trusted.

#include "common/rank_protocol/flight_tail.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "common/rank_protocol/spool.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::rank_protocol {
namespace {

FlightCall call(int64_t sequence, int group = 0) {
  return {group, sequence, "all_gather", "bfloat16", 1024, 3, sequence, 1'000 + sequence, CallState::kQueued};
}

TEST(FlightTailTest, IsReadWhileTheRankLivesAndAfter) {
  const TempFolder folder;
  const std::string path = flight_tail_path(folder.path(), 7);
  {
    const auto tail = FlightTail::create(path, 7);
    ASSERT_TRUE(tail.ok()) << tail.status();
    (*tail)->add_group(0, {"tp", "4-7", group_key("tp", {4, 5, 6, 7}), 0});
    (*tail)->add_group(1, {"pp 0->1", "0,1", 9, 0});
    (*tail)->add_call(0, call(1));
    (*tail)->set_state(0, CallState::kCompleted);
    (*tail)->add_call(1, call(1, 1));
    const auto seen = read_flight_tail(path);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(seen->calls.size(), 2u);
  }
  const auto flight = read_flight_tail(path);
  ASSERT_TRUE(flight.ok()) << flight.status();
  EXPECT_EQ(flight->rank, 7);
  EXPECT_EQ(flight->groups,
            (std::vector<FlightGroup>{{"tp", "4-7", group_key("tp", {4, 5, 6, 7}), 1}, {"pp 0->1", "0,1", 9, 1}}));
  FlightCall first = call(1);
  first.state = CallState::kCompleted;
  EXPECT_EQ(flight->calls, (std::vector<FlightCall>{first, call(1, 1)}));
}

TEST(FlightTailTest, KeepsTheNewestCallsAndTheFirstGroups) {
  const TempFolder folder;
  const auto tail = FlightTail::create(folder.file("f"), 0);
  ASSERT_TRUE(tail.ok());
  for (int i = 0; i < FlightTail::kGroups + 5; ++i) (*tail)->add_group(i, {"g", "0", static_cast<uint64_t>(i), 0});
  const int64_t made = 3 * FlightTail::kCalls + 17;
  for (int64_t i = 0; i < made; ++i) (*tail)->add_call(i, call(i + 1));
  (*tail)->add_call(made, call(1, FlightTail::kGroups + 1));
  (*tail)->set_state(0, CallState::kCompleted);  // This slot was overwritten long ago.
  const auto flight = read_flight_tail(folder.file("f"));
  ASSERT_TRUE(flight.ok());
  EXPECT_EQ(flight->groups.size(), static_cast<size_t>(FlightTail::kGroups));
  ASSERT_EQ(flight->calls.size(), static_cast<size_t>(FlightTail::kCalls - 1))
      << "the call of an unknown group is left out";
  EXPECT_EQ(flight->calls.front().sequence, made - FlightTail::kCalls + 2);
  EXPECT_EQ(flight->calls.back().sequence, made);
  EXPECT_EQ(flight->groups[0].issued, made);
  for (const FlightCall& one : flight->calls) EXPECT_NE(one.state, CallState::kCompleted);
}

TEST(FlightTailTest, RefusesOtherFileContents) {
  const TempFolder folder;
  EXPECT_EQ(read_flight_tail(folder.file("f")).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder.file("f")) << "not a flight tail";
  EXPECT_EQ(read_flight_tail(folder.file("f")).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(::symlink("/etc/passwd", folder.file("l").c_str()), 0);
  EXPECT_FALSE(read_flight_tail(folder.file("l")).ok());
  ASSERT_EQ(::mkfifo(folder.file("p").c_str(), 0600), 0);
  EXPECT_FALSE(read_flight_tail(folder.file("p")).ok()) << "a pipe does not block the reader";
}

// For any bytes, reading ends and gives valid text and indexes.
TEST(FlightTailTest, AnyBytesGiveValidOutput) {
  const TempFolder folder;
  uint64_t state = 1;
  const auto next = [&state] { return state = state * 6364136223846793005 + 1442695040888963407; };
  for (int round = 0; round < 300; ++round) {
    {
      const auto tail = FlightTail::create(folder.file("f"), 1);
      ASSERT_TRUE(tail.ok());
      (*tail)->add_group(0, {"tp", "0,1", 1, 0});
      for (int i = 0; i < 40; ++i) (*tail)->add_call(i, call(i + 1));
    }
    std::fstream file(folder.file("f"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto size = static_cast<uint64_t>(file.tellg());
    const uint64_t limit = round % 2 == 0 ? size : 8'000;
    for (int i = 0; i < 200; ++i) {
      file.seekp(static_cast<std::streamoff>((next() >> 20) % limit));
      file.put(static_cast<char>(next() >> 40));
    }
    file.close();
    if (round % 3 == 0) {
      ASSERT_EQ(::truncate(folder.file("f").c_str(), static_cast<off_t>((next() >> 20) % size)), 0);
    }
    const auto flight = read_flight_tail(folder.file("f"));
    if (!flight.ok()) continue;
    for (const FlightCall& one : flight->calls) {
      ASSERT_GE(one.group, 0);
      ASSERT_LT(static_cast<size_t>(one.group), flight->groups.size());
      for (const char c : one.operation) ASSERT_TRUE(c >= ' ' && c <= '~');
    }
  }
}

TEST(FlightTailTest, FullDiskIsAnError) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto tail = FlightTail::create(folder.file("f"), 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(tail.ok());
  EXPECT_NE(::access(folder.file("f.new").c_str(), F_OK), 0) << "no partial file remains";
}

// Wherever the limit falls in the list, also inside of a number, the ranks that are read are the first ones of the
// group.
TEST(FlightTailTest, LongRankListEndsAfterAWholeRange) {
  const TempFolder folder;
  for (const int first : {5, 50, 100, 1000, 99'990}) {
    std::vector<int> ranks;
    for (int i = 0; i < 40; ++i) ranks.push_back(first + i * i);  // No two gaps are equal.
    const std::string path = folder.file(std::to_string(first));
    const auto tail = FlightTail::create(path, 1);
    ASSERT_TRUE(tail.ok()) << tail.status();
    (*tail)->add_group(0, {"tp", format_rank_list(ranks), 7, 0});
    const auto flight = read_flight_tail(path);
    ASSERT_TRUE(flight.ok()) << flight.status();
    const std::vector<int> seen = parse_rank_list(flight->groups[0].members);
    ASSERT_GT(seen.size(), 5u);
    ASSERT_LT(seen.size(), ranks.size());
    EXPECT_EQ(seen, std::vector<int>(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(seen.size()))) << first;
  }
}

TEST(FlightTailTest, RankListsAreFolded) {
  EXPECT_EQ(format_rank_list({}), "");
  EXPECT_EQ(format_rank_list({5}), "5");
  EXPECT_EQ(format_rank_list({0, 1}), "0-1");
  EXPECT_EQ(format_rank_list({0, 8}), "0,8");
  EXPECT_EQ(format_rank_list({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(format_rank_list({0, 8, 16, 24}), "0-24/8");
  EXPECT_EQ(format_rank_list({1, 2, 4, 6, 8}), "1-2,4-8/2");
  for (const std::vector<int>& ranks :
       {std::vector<int>{5}, {0, 1}, {0, 8}, {0, 1, 2, 3, 8}, {0, 8, 16, 24}, {1, 2, 4, 6, 8}})
    EXPECT_EQ(parse_rank_list(format_rank_list(ranks)), ranks);
  EXPECT_EQ(parse_rank_list("0-3,8-1"), (std::vector<int>{0, 1, 2, 3})) << "cut";
  for (const char* nonsense : {"", "a", "-1", "3-0", "0-9/0", "0-1-2"})
    EXPECT_EQ(parse_rank_list(nonsense).size(), 0u) << nonsense;
  EXPECT_NE(group_key("tp", {0, 1}), group_key("tp", {0, 2}));
  EXPECT_NE(group_key("tp", {0, 1}), group_key("dp", {0, 1}));
  EXPECT_NE(group_key("tp", {1, 12}), group_key("tp", {11, 2}));
}

}  // namespace
}  // namespace titan::rank_protocol
