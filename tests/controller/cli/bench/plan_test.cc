#include "controller/cli/bench/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchPlanTest, SplitsWordsLikeAShell) {
  EXPECT_THAT(split_words("--a.b 1\t --c.d=2 ").value(), ElementsAre("--a.b", "1", "--c.d=2"));
  EXPECT_THAT(split_words(R"(--x.y 'two words' "and 'more'" \"one\ word\" '' a'b'c)").value(),
              ElementsAre("--x.y", "two words", "and 'more'", "\"one word\"", "", "abc"));
  EXPECT_THAT(split_words("").value(), ElementsAre());
  EXPECT_EQ(split_words("--x.y 'open").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BenchPlanTest, AVariantHasANameAndKeys) {
  const auto variant = parse_variant("long.rows-2=--training.seq_len 512 --resources.kernels=reference");
  ASSERT_TRUE(variant.ok()) << variant.status();
  EXPECT_EQ(variant->name, "long.rows-2");
  EXPECT_THAT(variant->overrides, ElementsAre("--training.seq_len", "512", "--resources.kernels=reference"));
}

// Typing mistakes are reported before anything runs.
TEST(BenchPlanTest, BadVariantsAreRefused) {
  const std::pair<std::string, std::string> cases[] = {{"reference", "there is no '='"},
                                                       {"=--a.b 1", "a name is"},
                                                       {"a b=--a.b 1", "a name is"},
                                                       {"--a.b=1", "a name is"},
                                                       {"x=", "it changes no key"},
                                                       {"x=a.b 1", "'a.b' is not a configuration key"},
                                                       {"x=--nproc 2", "'--nproc' is not a configuration key"},
                                                       {"x=--a.b \"1", "is not closed"}};
  for (const auto& [text, why] : cases) {
    const absl::Status status = parse_variant(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST(BenchPlanTest, VariantNamesMustBeUnique) {
  EXPECT_EQ(parse_variants({"x=--a.b 1", "y=--a.b 2"}, "base")->size(), 2u);
  for (const char* second : {"x=--a.b 3", "base=--a.b 3"}) {
    const absl::Status status = parse_variants({"x=--a.b 1", second}, "base").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is taken"));
  }
}

// A drift of the machine's speed over the rounds affects all variants alike.
TEST(BenchPlanTest, RunsAlternateBackAndForth) {
  EXPECT_THAT(order_of_runs(1, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(order_of_runs(2, 3), ElementsAre(0, 1, 1, 0, 0, 1));
  EXPECT_THAT(order_of_runs(3, 2), ElementsAre(0, 1, 2, 2, 1, 0));
}

}  // namespace
}  // namespace titan::cli
