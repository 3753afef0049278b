#include "common/plan/pipeline/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace titan::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

PlanOptions four_ranks() { return {.pipeline_parallel_degree = 4, .local_batch_size = 8, .blocks = 6}; }

std::string why(const PlanOptions& options) {
  const auto made = plan(options);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(made.status().message());
}

TEST(PlanTest, DefaultsOfTorchtitan) {
  const auto plain = plan(four_ranks());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->schedule.stages, 4);
  EXPECT_EQ(plain->schedule.microbatches, 8);
  EXPECT_THAT(plain->split, SizeIs(4));
  EXPECT_THAT(plain->warnings, IsEmpty());
  PlanOptions options = four_ranks();
  options.pipeline_parallel_schedule = "interleavedZERObubble";
  EXPECT_EQ(plan(options)->schedule.stages, 8);
  options.pipeline_parallel_layers_per_stage = 1;  // torchtitan's own test: (6 + 2) / 1 = 8 stages.
  EXPECT_EQ(plan(options)->schedule.stages, 8);
  options.module_fqns_per_model_part = {{{"tok_embeddings"},
                                         {"layers.0"},
                                         {"layers.1"},
                                         {"layers.2"},
                                         {"layers.3"},
                                         {"layers.4"},
                                         {"layers.5"},
                                         {"norm", "output"}}};
  EXPECT_EQ(plan(options)->split[7], std::vector<std::string>{"output"});
}

// Without a pipeline everything is one stage and one microbatch, and the other pipeline keys have no effect.
TEST(PlanTest, OneRankIsOneStage) {
  PlanOptions options = four_ranks();
  options.pipeline_parallel_degree = 1;
  options.pipeline_parallel_schedule = "DualPipeV";
  const auto made = plan(options);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->schedule.microbatches, 1);
  EXPECT_THAT(made->split, SizeIs(1));
  EXPECT_THAT(made->split[0], SizeIs(8));
}

TEST(PlanTest, FewMicrobatchesRunWithAWarning) {
  PlanOptions options = four_ranks();
  options.local_batch_size = 2;
  const auto made = plan(options);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_THAT(made->warnings, SizeIs(1));
  EXPECT_THAT(made->warnings[0], HasSubstr("2 microbatches for 4 pipeline stages leave the ranks idle for 60 % of a "
                                           "step; use at least 4"));
}

TEST(PlanTest, NamesTheKeyAndPossibleValues) {
  PlanOptions options = four_ranks();
  options.pipeline_parallel_microbatch_size = 3;
  EXPECT_THAT(why(options), HasSubstr("parallelism.pipeline_parallel_microbatch_size: 3 does not divide "
                                      "training.local_batch_size 8; possible: 1, 2, 4, 8"));
  options = four_ranks();
  options.pipeline_parallel_layers_per_stage = 3;
  EXPECT_THAT(why(options), HasSubstr("parallelism.pipeline_parallel_layers_per_stage: 3 gives 3 stages for 8 layers "
                                      "(embedding and output count), which pipeline_parallel_degree 4 does not divide; "
                                      "possible: 1, 2"));
  options.pipeline_parallel_layers_per_stage = 1;
  EXPECT_THAT(why(options), HasSubstr("1F1B takes exactly 1 stage per rank, not 2"));
  options = four_ranks();
  options.pipeline_parallel_schedule = "PipelineScheduleMulti";
  EXPECT_THAT(why(options), HasSubstr("does not define an order; set parallelism.pipeline_parallel_schedule_csv"));
  options = four_ranks();
  options.module_fqns_per_model_part = {{{"tok_embeddings"}, {"norm", "output"}}};
  EXPECT_THAT(why(options), HasSubstr("module_fqns_per_model_part: 2 parts are not a multiple"));
  options = four_ranks();
  options.blocks = 1;
  EXPECT_THAT(why(options), HasSubstr("4 stages for 3 layers"));
}

TEST(PlanTest, SchedulesFromFiles) {
  PlanOptions options{.pipeline_parallel_degree = 2, .local_batch_size = 2, .blocks = 6};
  options.csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  const auto made = plan(options);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->split, SizeIs(2));
  options.local_batch_size = 4;
  EXPECT_THAT(why(options), HasSubstr("schedule_csv: is for 2 microbatches, but training.local_batch_size 4 makes 4"));
  options.local_batch_size = 2;
  options.pipeline_parallel_layers_per_stage = 2;
  EXPECT_THAT(why(options), HasSubstr("is for 2 stages, but the other keys make 4"));
  options.pipeline_parallel_layers_per_stage.reset();
  options.pipeline_parallel_degree = 4;
  EXPECT_THAT(why(options), HasSubstr("has rows for 2 ranks, but pipeline_parallel_degree is 4"));
  options.pipeline_parallel_degree = 2;
  options.csv = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n";
  EXPECT_THAT(why(options), HasSubstr("schedule_csv: the ranks wait for each other forever"));
  options.csv.reset();
  options.csv_later = true;
  EXPECT_TRUE(plan(options).ok());
}

}  // namespace
}  // namespace titan::pipeline
