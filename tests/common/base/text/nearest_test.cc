#include "common/base/text/nearest.h"

#include "gtest/gtest.h"

namespace titan {
namespace {

// Suggests the closest name, the full form of an abbreviation or a synonym, and never a wild guess.
TEST(NearestTest, PrefersTheClosestOrReturnsNothing) {
  const std::vector<std::string> known = {"c4", "c4_test", "c4_validation"};
  EXPECT_EQ(nearest("c4test", known), "c4_test");
  EXPECT_EQ(nearest("C4-Validation", known), "c4_validation");
  EXPECT_EQ(nearest("c4_val", known), "c4_validation");
  EXPECT_EQ(nearest("imagenet", known), "");
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest("bf16", {"float32", "bfloat16"}), "bfloat16");
  EXPECT_EQ(nearest("gpu", {"cpu", "cuda"}), "cuda") << "a synonym goes before a near spelling";
  EXPECT_EQ(nearest("gpu", {"cpu"}), "cpu");
}

// Other words and other sizes are not misspellings.
TEST(NearestTest, DistantWordsAreNotSuggested) {
  EXPECT_EQ(nearest("llama2", {"llama3", "qwen3"}), "");
  EXPECT_EQ(nearest("llama_3", {"llama3", "qwen3"}), "llama3");
  EXPECT_EQ(nearest("7B", {"1B", "8B"}), "");
  EXPECT_EQ(nearest("32B", {"3B"}), "");
  EXPECT_EQ(nearest("fsdp", {"steps", "dtype"}), "");
  EXPECT_EQ(nearest("seq_length", {"seq_len", "steps"}), "seq_len") << "longer than the name";
}

TEST(NearestTest, KeysMatchByNameThenBySection) {
  const std::vector<std::string> keys = {"training.steps", "training.seq_len", "optimizer.lr", "validation.steps"};
  EXPECT_EQ(nearest_key("training.lr", keys), "optimizer.lr");
  EXPECT_EQ(nearest_key("training.stepz", keys), "training.steps");
  EXPECT_EQ(nearest_key("validaton.steps", keys), "validation.steps");
  EXPECT_EQ(nearest_key("x.y", keys), "");
  EXPECT_EQ(nearest_key("float8.steps", keys), "") << "two sections have it";
  EXPECT_EQ(nearest_key("trainings.seqlen", keys), "training.seq_len");
}

TEST(NearestTest, FormatsASuggestionAsASentenceEnd) {
  EXPECT_EQ(did_you_mean("sumbit", {"submit", "list"}), "; did you mean 'submit'?");
  EXPECT_EQ(did_you_mean("frobnicate", {"submit", "list"}), "");
}

}  // namespace
}  // namespace titan
