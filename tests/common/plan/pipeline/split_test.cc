#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/pipeline/plan.h"

namespace titan::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Examples to read; oracle_test.py compares with torchtitan's own function.
TEST(SplitTest, EmbeddingAndHeadCountAsLayers) {
  EXPECT_THAT(*split_layers(1, 2, 1, 1), ElementsAre(ElementsAre("tok_embeddings", "layers.0", "layers.1", "output")));
  EXPECT_THAT(*split_layers(2, 6, 1, 1), ElementsAre(ElementsAre("tok_embeddings", "layers.0", "layers.1", "layers.2"),
                                                     ElementsAre("layers.3", "layers.4", "layers.5", "output")));
  EXPECT_THAT(*split_layers(4, 3, 1, 1), ElementsAre(ElementsAre("tok_embeddings", "layers.0"), ElementsAre("layers.1"),
                                                     ElementsAre("layers.2"), ElementsAre("output")));
  EXPECT_THAT(*split_layers(2, 4, 3, 0), ElementsAre(ElementsAre("tok_embeddings", "layers.0"),
                                                     ElementsAre("layers.1", "layers.2", "layers.3", "output")));
}

// Results between the blocks of a tower have other shapes than the messages between stages.
TEST(SplitTest, EntryBlocksStayInTheFirstStage) {
  const ModelBlocks blocks({"tower.0", "tower.1", "tok_embeddings", "layers.0", "layers.1", "output"}, /*entry=*/3);
  EXPECT_EQ(blocks.layers(), 2);
  EXPECT_THAT(
      *split_layers(2, blocks, 1, 1),
      ElementsAre(ElementsAre("tower.0", "tower.1", "tok_embeddings", "layers.0"), ElementsAre("layers.1", "output")));
  EXPECT_THAT(*split_layers(2, blocks, 2, 0), ElementsAre(ElementsAre("tower.0", "tower.1", "tok_embeddings"),
                                                          ElementsAre("layers.0", "layers.1", "output")));
  EXPECT_THAT(
      *split_by_names({{"tower.0", "tower.1", "tok_embeddings"}, {"layers.0", "layers.1", "norm", "output"}}, blocks),
      ElementsAre(ElementsAre("tower.0", "tower.1", "tok_embeddings"), ElementsAre("layers.0", "layers.1", "output")));
  const auto cut =
      split_by_names({{"tower.0"}, {"tower.1", "tok_embeddings", "layers.0", "layers.1", "norm", "output"}}, blocks);
  EXPECT_THAT(std::string(cut.status().message()),
              HasSubstr("tower.1 is in part 1, but tower.0, tower.1, tok_embeddings must all be in part 0"));
}

TEST(SplitTest, RefusesEmptyStages) {
  EXPECT_THAT(std::string(split_layers(9, 6, 1, 1).status().message()),
              HasSubstr("parallelism.pipeline_parallel_degree: 9 stages for 8 layers"));
  EXPECT_THAT(std::string(split_layers(4, 6, 3, 1).status().message()),
              HasSubstr("pipeline_parallel_first_stage_less_layers: the embedding counts as 3 layers, but a stage has "
                        "only 2; use at most 2"));
  EXPECT_THAT(std::string(split_layers(4, 6, 0, 3).status().message()),
              HasSubstr("pipeline_parallel_last_stage_less_layers: the output counts as 3"));
}

TEST(SplitTest, ByNamesPutsNormAndHeadIntoOneBlock) {
  EXPECT_THAT(*split_by_names({{"tok_embeddings", "layers.0"}, {"layers.2", "layers.1"}, {"output", "norm"}}, 3),
              ElementsAre(ElementsAre("tok_embeddings", "layers.0"), ElementsAre("layers.1", "layers.2"),
                          ElementsAre("output")));
}

TEST(SplitTest, ByNamesNamesWhatIsWrong) {
  const auto why = [](const std::vector<std::vector<std::string>>& parts) {
    const auto split = split_by_names(parts, 2);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(split.status().message());
  };
  EXPECT_THAT(why({{"tok_embeddings", "layers.0"}, {"layers.1", "norm"}}), HasSubstr("output is in no part"));
  EXPECT_THAT(why({{"tok_embeddings", "layers.0"}, {"norm", "output"}}), HasSubstr("layers.1 is in no part"));
  EXPECT_THAT(why({{"tok_embeddings", "layers.0", "layers.1", "norm"}, {"output"}}),
              HasSubstr("norm is in part 0 and output in part 1; they must be in the same part"));
  EXPECT_THAT(why({{"tok_embeddings", "layers.1"}, {"layers.0", "norm", "output"}}),
              HasSubstr("layers.1 is in part 0, before layers.0 in part 1"));
  EXPECT_THAT(why({{"tok_embeddings", "layers.0", "layers.1"}, {}, {"norm", "output"}}), HasSubstr("part 1 is empty"));
  EXPECT_THAT(why({{"tok_embeddings", "layers.7"}}), HasSubstr("names \"layers.7\", which the model does not have"));
  EXPECT_THAT(why({{"layers.0"}, {"layers.0"}}), HasSubstr("layers.0 is in part 0 and again in part 1"));
}

}  // namespace
}  // namespace titan::pipeline
