#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/cli/logs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// Pieces may end in the middle of a line, and pieces of several ranks arrive interleaved.
TEST(LogLinesTest, LinesAreCompleteWhereverPiecesEnd) {
  std::vector<std::string> seen;
  const LogLines::Take take = [&seen](int attempt, int rank, const std::string& line) {
    seen.push_back(absl::StrCat(attempt, ".", rank, ":", line));
    return true;
  };
  LogLines lines;
  lines.add(1, 0, "one\ntw", take);
  lines.add(1, 1, "other\n", take);
  lines.add(1, 0, "o\n\nthree", take);
  lines.add(2, 0, "new\n", take);
  EXPECT_THAT(seen, ::testing::ElementsAre("1.0:one", "1.1:other", "1.0:two", "1.0:", "2.0:new"));
  lines.finish(take);
  EXPECT_EQ(seen.back(), "1.0:three");
  lines.finish(take);
  EXPECT_EQ(seen.size(), 6) << "delivered lines are not kept";
}

TEST(LogLinesTest, StopsWhenTheReaderStops) {
  int taken = 0;
  const LogLines::Take once = [&taken](int, int, const std::string&) { return ++taken < 1; };
  LogLines lines;
  EXPECT_FALSE(lines.add(1, 0, "a\nb\nc\n", once));
  EXPECT_EQ(taken, 1);
}

}  // namespace
}  // namespace titan::cli
