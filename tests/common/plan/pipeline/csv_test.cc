#include "common/plan/pipeline/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/plan/pipeline/generators.h"

namespace titan::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(CsvTest, WritesAndReadsEverySchedule) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const Schedule schedule = *generate(kind.name, ranks, kind.default_stages_per_rank, 2 * ranks);
      const auto back = parse_csv(to_csv(schedule));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->steps, schedule.steps) << kind.name;
      EXPECT_EQ(back->stages, schedule.stages);
      EXPECT_EQ(back->microbatches, schedule.microbatches);
      if (ranks > 1) {
        EXPECT_EQ(back->placement, schedule.placement) << kind.name;
      }
    }
  }
}

// torch's own files have pauses, blanks, transfers, quotes, carriage returns and reductions.
TEST(CsvTest, ReadsTorchsFiles) {
  const auto schedule = parse_csv(
      "0UNSHARD,0F0,0SEND_F0, 0F1,0SEND_F1,,,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
      ",1F0,\"1I0\",1F1,1W0,1B1\r\n\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(to_csv(*schedule), "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1B1\n");
  EXPECT_EQ(schedule->steps[1].back(), (ScheduleStep{{Action{1, ComputationType::kReduce, -1}}}));
}

std::string refusal(const std::string& text) {
  const auto schedule = parse_csv(text);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(schedule.status().message());
}

TEST(CsvTest, NamesTheInvalidCell) {
  EXPECT_THAT(refusal(""), HasSubstr("is empty"));
  EXPECT_THAT(refusal("\r\n \n"), HasSubstr("is empty"));
  EXPECT_THAT(refusal("0F0,0B0\n1F0,1G0\n"), HasSubstr("row 2, column 2: \"1G0\" is not a stage, F, B, I or W"));
  EXPECT_THAT(refusal("0F0,0B\n"), HasSubstr("row 1, column 2: \"0B\" has no microbatch"));
  EXPECT_THAT(refusal("(0F0;1B0\n"), HasSubstr("is not a pair"));
  EXPECT_THAT(refusal("0F0,0B0\n,,\n1F0,1B0\n"), HasSubstr("row 2 is empty: rank 1 has no work"));
  for (const std::string cell : {"F0", "0F0x", "0F99999999999", "-1F0", "0F-1", "0 F0", "0f0", "0F0;0B0", "\"0F0"}) {
    EXPECT_THAT(refusal("0F0,0B0\n" + cell + ",1B0\n"), HasSubstr("row 2, column 1: \"" + cell)) << cell;
  }
  EXPECT_THAT(refusal("0F0,\x1b[31m" + std::string(500, 'x')),
              HasSubstr("column 2: \"?[31m" + std::string(35, 'x') + "...\" is"));
  EXPECT_THAT(refusal(std::string("0F0,0B0\n1F0,\0\n", 14)), HasSubstr("row 2, column 2"));
}

// Work that cannot run is named by its place in the file, counting pauses and transfers.
TEST(CsvTest, NamesTheRowOfWorkThatCannotRun) {
  EXPECT_THAT(refusal("0F0\n1F0\n"), HasSubstr("forward passes only"));
  EXPECT_THAT(refusal("0F0,0B0,2F0,2B0\n1F0,1B0\n"), HasSubstr("3 stages on 2 ranks"));
  EXPECT_THAT(refusal("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
              HasSubstr("row 2 has no backward pass of stage 1 for microbatch 1"));
  EXPECT_THAT(refusal("0F0,,0F0,0B0\n1F0,1B0\n"), HasSubstr("row 1, column 3: 0F0 comes twice"));
  EXPECT_THAT(refusal("0F0,0SEND_F0,0B0,0B0\n1F0,1B0\n"), HasSubstr("row 1, column 4: 0B0 comes twice"));
  EXPECT_THAT(refusal("1F0,1B0\n0F0,0B0\n"), HasSubstr("row 1, column 1: 1F0 works on a stage that rank 1 owns"));
  EXPECT_THAT(refusal("0B0,0F0\n1F0,1B0\n"), HasSubstr("row 1, column 1: 0B0 comes before its forward pass"));
  EXPECT_THAT(refusal("0F0,0W0,0I0\n1F0,1B0\n"), HasSubstr("row 1, column 2: 0W0 comes before its input gradient"));
  EXPECT_THAT(refusal("0F0,0I0\n1F0,1B0\n"), HasSubstr("row 1 has no weight gradient of stage 0 for microbatch 0"));
  EXPECT_THAT(refusal("0F0,0REDUCE_GRAD,0B0\n1F0,1B0\n"), HasSubstr("row 1, column 2: 0R comes before the weight"));
  EXPECT_THAT(refusal("0F0,0B0\n(1F0;1W0)OVERLAP_F_B,1B0\n"),
              HasSubstr("row 2, column 1: 1W0 cannot run together with 1F0"));
  EXPECT_THAT(refusal("0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
              HasSubstr("wait for each other forever: row 1, column 3: 0B0 waits for the gradient of stage 1; row 2, "
                        "column 2: 1F1 waits for the output of stage 0"));
}

// A number that is impossible for a file of this size costs neither time nor memory.
TEST(CsvTest, RefusesAbsurdNumbers) {
  EXPECT_THAT(
      refusal("0F0,0B0\n1F2147483647,1B0\n"),
      HasSubstr("row 2, column 1: 1F2147483647 names microbatch 2147483647, but the file has 2 forward passes"));
  EXPECT_THAT(refusal("0F0,2147483647B0\n1F0,1B0\n"), HasSubstr("row 1, column 2: 2147483647B0 names stage"));
}

// Spreadsheets write a byte order mark and their own line ends.
TEST(CsvTest, ReadsWhatSpreadsheetsWrite) {
  const auto schedule = parse_csv("\xEF\xBB\xBF\"0F0\",\"0B0\"\r\n\"1F0\",\"1B0\"\r\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(to_csv(*schedule), "0F0,0B0\n1F0,1B0\n");
}

// In every schedule, one lost or doubled cell makes the file unusable.
TEST(CsvTest, NoCellCanBeLostOrDoubled) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string text = to_csv(*generate(kind.name, 3, kind.default_stages_per_rank, 6));
    std::vector<std::string> rows = absl::StrSplit(text, '\n', absl::SkipEmpty());
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::vector<std::string> cells = absl::StrSplit(rows[row], ',');
      for (std::size_t cell = 0; cell < cells.size(); ++cell) {
        for (const bool twice : {false, true}) {
          std::vector<std::string> changed = cells;
          twice ? changed.insert(changed.begin() + cell, cells[cell]) : changed.erase(changed.begin() + cell);
          std::vector<std::string> file = rows;
          file[row] = absl::StrJoin(changed, ",");
          EXPECT_THAT(refusal(absl::StrJoin(file, "\n")), HasSubstr(absl::StrCat("row ", row + 1))) << kind.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::pipeline
