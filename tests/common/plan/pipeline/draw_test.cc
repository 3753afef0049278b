#include "common/plan/pipeline/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "common/plan/pipeline/generators.h"

namespace titan::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(DrawTest, TextShowsTimeBubbleAndMemory) {
  const Schedule schedule = *generate("1F1B", 2, 1, 3);
  EXPECT_EQ(draw_text(schedule, *simulate(schedule)),
            "1F1B: 2 ranks, 2 stages, 3 microbatches; a step takes 12, bubble 25.0 %\n"
            "\n"
            "rank 0   0F0 0F1         0B0---- 0F2 0B1----     0B2----\n"
            "rank 1       1F0 1B0---- 1F1 1B1---- 1F2 1B2----\n"
            "\n"
            "rank  stages         bubble    most activations held\n"
            "0     0              25.0 %    2\n"
            "1     1              25.0 %    1\n");
}

// If names are too long, each column shows one letter for the work that takes most of it; bytes follow the counts.
TEST(DrawTest, NarrowTextHasOneLetterPerColumn) {
  const Schedule schedule = *generate("ZBVZeroBubble", 2, 2, 3);
  const std::string text =
      draw_text(schedule, *simulate(schedule), {.width = 30, .stage_bytes = {10, 20, 20, 1 << 20}});
  EXPECT_THAT(text, HasSubstr("rank 0   FFF"));
  EXPECT_THAT(text, HasSubstr("small letters: the rank's next stage"));
  EXPECT_THAT(text, HasSubstr("0     0 3            5.3 %     1.00 MiB    4 (stage 0: 3, stage 3: 1)"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool drawn = line.rfind("rank ", 0) == 0 && line[5] != ' ';
    EXPECT_LE(line.size(), drawn ? 30u : 200u) << line;
  }
  // One letter is exactly one pass if a column is as long as a pass.
  const Schedule plain = *generate("1F1B", 2, 1, 3);
  EXPECT_THAT(draw_text(plain, *simulate(plain), {.width = 40}),
              HasSubstr("rank 0   FF..BBFBB.BB\nrank 1   .FBBFBBFBB..\n"));
}

// The picture has one box with its own title for every pass.
TEST(DrawTest, SvgHasABoxForEveryPass) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = *generate(kind.name, 3, kind.default_stages_per_rank, 6);
    const auto run = simulate(schedule, {.reduce = 1, .pairs_overlap = true});
    const std::string svg = draw_svg(schedule, *run);
    std::size_t boxes = 0, passes = 0;
    for (std::size_t at = svg.find("<title>"); at != svg.npos; at = svg.find("<title>", at + 1)) ++boxes;
    for (const RankTimeline& rank : run->ranks) passes += rank.actions.size();
    EXPECT_EQ(boxes, passes + schedule.ranks);  // Each rank also has a curve of its memory over time.
    EXPECT_THAT(svg, HasSubstr("<title>0F0: 0 to 1</title>"));
    EXPECT_THAT(svg, HasSubstr(kind.name));
    EXPECT_FALSE(draw_text(schedule, *run).empty());
  }
}

}  // namespace
}  // namespace titan::pipeline
