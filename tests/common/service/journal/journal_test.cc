#include "common/service/journal/journal.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace titan::journal {
namespace {

using ::testing::ElementsAre;

const absl::Time kThen = absl::FromUnixMillis(1'700'000'000'021);

// Scripts that grep or parse the lines rely on one line per event and on where each value ends.
TEST(JournalTest, EventIsOneLineWithDistinctValues) {
  Line line{Level::kWarning, "NodeLost", {}};
  line.add("node", "n1").add("job", "").add("message", "silent for 5 s\nsaid \"no\" \\ a=b");
  EXPECT_EQ(format(line), R"(event=NodeLost node=n1 message="silent for 5 s said \"no\" \\ a=b")");
}

TEST(JournalTest, AmbiguousValuesAreQuoted) {
  EXPECT_EQ(format(Line{Level::kInfo, "X", {{"reason", "a=b"}, {"empty", ""}, {"utf8", "grün"}}}),
            "event=X reason=\"a=b\" empty=\"\" utf8=grün");
}

TEST(JournalTest, EveryLevelHasAName) {
  EXPECT_EQ(name(Level::kInfo), "info");
  EXPECT_EQ(name(Level::kWarning), "warning");
  EXPECT_EQ(name(Level::kError), "error");
}

TEST(JournalTest, TextBeginsWithTimeAndLevel) {
  EXPECT_EQ(as_text(Line{Level::kError, "X", {{"node", "n1"}}}, kThen),
            "2023-11-14T22:13:20.021Z error event=X node=n1");
}

// For programs, JSON has every value unchanged.
TEST(JournalTest, JsonLineIsOneObject) {
  const std::string text =
      as_json(Line{Level::kWarning, "NodeLost", {{"node", "n1"}, {"message", "a \"b\"\nc \xff"}}}, kThen);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const nlohmann::json object = nlohmann::json::parse(text);
  EXPECT_EQ(object.at("time"), "2023-11-14T22:13:20.021Z");
  EXPECT_EQ(object.at("level"), "warning");
  EXPECT_EQ(object.at("event"), "NodeLost");
  EXPECT_EQ(object.at("node"), "n1");
  EXPECT_EQ(object.at("message"), "a \"b\"\nc \xEF\xBF\xBD");
}

std::string printed_with(StderrJournal::Options options, Level level) {
  ::testing::internal::CaptureStderr();
  StderrJournal(options).write(level, "X", "said");
  return ::testing::internal::GetCapturedStderr();
}

TEST(JournalTest, PrefixesThePriorityForSystemd) {
  EXPECT_EQ(printed_with({.priorities = true}, Level::kInfo).substr(0, 3), "<6>");
  EXPECT_EQ(printed_with({.priorities = true}, Level::kWarning).substr(0, 3), "<4>");
  EXPECT_EQ(printed_with({.json = true, .priorities = true}, Level::kError).substr(0, 4), "<3>{");
  EXPECT_EQ(printed_with({}, Level::kError).substr(0, 2), "20");
}

class Collected : public Journal {
 public:
  void write(const Line& line) override { lines.push_back(format(line)); }
  std::vector<std::string> lines;
};

TEST(JournalTest, KeepsTheNewestLinesAndForwardsAll) {
  const auto all = std::make_shared<Collected>();
  RecentLines recent(all, 150);
  for (const char* event : {"A", "B", "C", "D", "E"}) recent.write(Level::kInfo, event, "x");
  EXPECT_EQ(all->lines.size(), 5U);
  std::vector<std::string> kept;
  for (const std::string& line : recent.lines()) kept.push_back(line.substr(line.find("event=")));
  EXPECT_THAT(kept, ElementsAre("event=C message=x", "event=D message=x", "event=E message=x"));
}

}  // namespace
}  // namespace titan::journal
