#include "common/pipeline/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pipeline/generators.h"

namespace titan::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(CsvTest, WritesAndReadsEverySchedule) {
  for (const Kind& kind : kinds()) {
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

// As torch's own files look: pauses, blanks, transfers, quotes, carriage returns, reductions.
TEST(CsvTest, ReadsTorchsFiles) {
  const auto schedule = parse_csv(
      "0UNSHARD,0F0,0SEND_F0, 0F1,0SEND_F1,,,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
      ",1F0,\"1I0\",1F1,1W0,1B1\r\n\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(to_csv(*schedule), "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1B1\n");
  EXPECT_EQ(schedule->steps[1].back(), (Step{{Action{1, Work::kReduce, -1}}}));
}

TEST(CsvTest, NamesRowAndColumn) {
  const auto why = [](const char* text) {
    const auto schedule = parse_csv(text);
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(schedule.status().message());
  };
  EXPECT_THAT(why(""), HasSubstr("is empty"));
  EXPECT_THAT(why("0F0,0B0\n1F0,1G0\n"), HasSubstr("row 2, column 2: \"1G0\" is not a stage, F, B, I or W"));
  EXPECT_THAT(why("0F0,0B\n"), HasSubstr("row 1, column 2: \"0B\" names no microbatch"));
  EXPECT_THAT(why("F0\n"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(why("0F0x\n"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(why("0F99999999999\n"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(why("(0F0;1B0\n"), HasSubstr("is not a pair"));
  EXPECT_THAT(why("0F0,0B0\n,,\n1F0,1B0\n"), HasSubstr("row 2 is empty: rank 1 has no work"));
  EXPECT_THAT(why("0F0\n1F0\n"), HasSubstr("forward passes only"));
  EXPECT_THAT(why("1F0,1B0\n0F0,0B0\n"), HasSubstr("works on a stage that rank"));
  EXPECT_THAT(why("0F0,0B0,2F0,2B0\n1F0,1B0\n"), HasSubstr("3 stages on 2 ranks"));
}

}  // namespace
}  // namespace titan::pipeline
