#include "common/journal/journal.h"

#include "gtest/gtest.h"

namespace titan::journal {
namespace {

// Whoever greps or parses the lines must be able to rely on one line each and on where a value ends.
TEST(JournalTest, ALineStaysOneAndItsValuesCanBeToldApart) {
  Line line{Level::kWarning, "NodeLost", {}};
  line.add("node", "n1").add("job", "").add("message", "silent for 5 s\nsaid \"no\" \\ a=b");
  EXPECT_EQ(format(line), R"(event=NodeLost node=n1 message="silent for 5 s said \"no\" \\ a=b")");
}

TEST(JournalTest, WhatCouldBeTakenForAnotherFieldIsQuoted) {
  EXPECT_EQ(format(Line{Level::kInfo, "X", {{"reason", "a=b"}, {"empty", ""}, {"utf8", "grün"}}}),
            "event=X reason=\"a=b\" empty=\"\" utf8=grün");
}

TEST(JournalTest, EveryLevelHasAName) {
  EXPECT_EQ(name(Level::kInfo), "info");
  EXPECT_EQ(name(Level::kWarning), "warning");
  EXPECT_EQ(name(Level::kError), "error");
}

}  // namespace
}  // namespace titan::journal
