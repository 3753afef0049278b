// Lines of exits.jsonl outlive the version that wrote them: a newer daemon may find lines of an older shim, torn lines,
// or other text.

#include "common/rank_protocol/rank_exit.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace titan::rank_protocol {
namespace {

using nlohmann::json;

// Lines written by version 0.1.
constexpr char kFinished[] =
    R"({"exit_code":0,"last_words":"rank 0 of 2 is up","memory_limit_bytes":0,"out_of_memory":false,"pid":4242,"rank":0,)"
    R"("signal":0,"start_ticks":123456789,"stop_reason":"","time":1764423930123456789})";
constexpr char kKilled[] =
    R"({"exit_code":-1,"last_words":"step 12: \"loss\"\t\\ café","memory_limit_bytes":68719476736,"out_of_memory":true,)"
    R"("pid":4243,"rank":1,"signal":9,"start_ticks":123456790,"stop_reason":"ORPHANED","time":1764423930123456790})";

std::string text_of(const RankExit& exit) {
  return exit_to_json(exit).dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<RankExit> read(const std::string& line) { return exit_from_json(json::parse(line, nullptr, false)); }

TEST(RankExitTest, OutputFormatIsUnchanged) {
  EXPECT_EQ(text_of({.rank = 0,
                     .time_ns = 1764423930123456789,
                     .message = "rank 0 of 2 is up",
                     .pid = 4242,
                     .start_ticks = 123456789}),
            kFinished);
  EXPECT_EQ(text_of({.rank = 1,
                     .exit_code = -1,
                     .signal = 9,
                     .out_of_memory = true,
                     .memory_limit_bytes = int64_t{64} << 30,
                     .time_ns = 1764423930123456790,
                     .message = "step 12: \"loss\"\t\\ café",
                     .stop_reason = "ORPHANED",
                     .pid = 4243,
                     .start_ticks = 123456790}),
            kKilled);
}

TEST(RankExitTest, RecordedLinesRoundTrip) {
  for (const std::string line : {kFinished, kKilled}) {
    const absl::StatusOr<RankExit> exit = read(line);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(text_of(*exit), line);
  }
}

// The shim never writes the members that the controller adds.
TEST(RankExitTest, ControllerMembersAreNotWritten) {
  RankExit exit = *read(kKilled);
  exit.node = "n1";
  exit.report = 3;
  exit.kept_log_bytes = 100;
  EXPECT_EQ(text_of(exit), kKilled);
}

TEST(RankExitTest, OlderAndNewerShimsAreUnderstood) {
  const absl::StatusOr<RankExit> old = read(R"({"rank":2,"exit_code":12,"signal":0})");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(*old, (RankExit{.rank = 2, .exit_code = 12}));
  const absl::StatusOr<RankExit> later =
      read(R"({"rank":2,"exit_code":12,"signal":0,"node":"n1","report":7,"core_dump":{"path":[1,null]},"x":null})");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(*later, *old) << "unknown members are ignored, even if they have the name of a controller's member";
}

TEST(RankExitTest, PartialLinesAreRefused) {
  const std::string line = kKilled;
  for (size_t size = 0; size < line.size(); ++size) {
    EXPECT_EQ(read(line.substr(0, size)).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST(RankExitTest, InvalidRecordsAreRefused) {
  const std::vector<std::string> hostile = {
      "",
      "null",
      "7",
      "[]",
      "\"rank\"",
      "{}",
      R"({"rank":7})",
      R"({"rank":0,"exit_code":0})",
      R"({"rank":"0","exit_code":0,"signal":0})",
      R"({"rank":0,"exit_code":null,"signal":0})",
      R"({"rank":0,"exit_code":0,"signal":[9]})",
      R"({"rank":0,"exit_code":0,"signal":0,"last_words":7})",
      R"({"rank":0,"exit_code":0,"signal":0,"stop_reason":{}})",
      R"({"rank":0,"exit_code":0,"signal":0,"out_of_memory":"yes"})",
      R"({"rank":0,"exit_code":0,"signal":0,"time":"now"})",
      "{\"rank\":0,\"exit_code\":0,\"signal\":0,\"last_words\":\"\xFF\"}",  // A byte that would break a stream of
                                                                            // messages.
      R"({"rank":0,"exit_code":0,"signal":0,"last_words":"\ud800"})",
      std::string(100'000, '['),
  };
  for (const std::string& line : hostile) {
    EXPECT_EQ(read(line).status().code(), absl::StatusCode::kDataLoss) << line.substr(0, 100);
  }
}

// A rank may print any bytes of any length, but the shim has reserved a fixed size for its record.
TEST(RankExitTest, LongMessageIsCutToValidText) {
  const std::string line = text_of({.message = std::string(2047, 'x') + "é and more\xFF"});
  const absl::StatusOr<RankExit> exit = read(line);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->message, std::string(2047, 'x') + "\xEF\xBF\xBD");
  EXPECT_EQ(read(text_of({.message = "broken \xFF byte"}))->message, "broken \xEF\xBF\xBD byte");
}

}  // namespace
}  // namespace titan::rank_protocol
