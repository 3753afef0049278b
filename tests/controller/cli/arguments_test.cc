// Tests which words of a command line belong to titanctl and which override the configuration.

#include "controller/cli/arguments.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::ElementsAre;

CommandLine split(std::vector<const char*> words) {
  words.insert(words.begin(), "titanctl");
  return split_arguments(static_cast<int>(words.size()), words.data());
}

// A flag without a value before the file must not take the file as its value, in any format.
TEST(ArgumentsTest, FileIsNotTakenAsAFlagsValue) {
  for (const char* file : {"job.toml", "job.yaml", "job.yml", "job.json"}) {
    const CommandLine found = split({"submit", "--training.compile", file, "--training.steps", "10"});
    EXPECT_THAT(found.overrides, ElementsAre("--training.compile", "--training.steps", "10")) << file;
    EXPECT_EQ(found.words.back(), file);
  }
}

TEST(ArgumentsTest, FileNamesAfterTheFileAreValues) {
  const CommandLine found = split({"submit", "job.json", "--training.dataset_path", "data.json"});
  EXPECT_THAT(found.overrides, ElementsAre("--training.dataset_path", "data.json"));
}

}  // namespace
}  // namespace titan::cli
