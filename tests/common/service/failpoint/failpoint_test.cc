#include "common/service/failpoint/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

namespace titan::failpoint {
namespace {

Failpoint second("test.second"), first("test.first"), other("test.other");

TEST(FailpointTest, ListsAllFailpointsOfTheProgram) {
  EXPECT_THAT(names(), testing::ElementsAre("test.first", "test.other", "test.second"));
}

TEST(FailpointTest, UnarmedFailpointsDoNothing) {
  for (int i = 0; i < 1000; ++i) first.pass();
}

TEST(FailpointDeathTest, KillsAtTheNthPassage) {
  EXPECT_EXIT(
      {
        if (!arm("test.first:3").ok()) std::exit(1);
        for (int i = 0; i < 2; ++i) first.pass();
        other.pass();
        std::fputs("two passed", stderr);
        first.pass();
      },
      testing::KilledBySignal(SIGKILL), "two passed");
}

TEST(FailpointDeathTest, KillsAtTheFirstPassageByDefault) {
  EXPECT_EXIT(((void)arm("test.second"), second.pass()), testing::KilledBySignal(SIGKILL), "");
}

TEST(FailpointTest, RefusesInvalidSpecifications) {
  for (const char* text : {"test.third", "", "test.first:", "test.first:0", "test.first:-1", "test.first:x"}) {
    EXPECT_EQ(arm(text).code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(FailpointDeathTest, IsArmedFromTheEnvironment) {
  EXPECT_EXIT(
      {
        ::setenv("TITAN_FAILPOINT", "test.first", 1);
        if (!arm_from_environment().ok()) std::exit(1);
        first.pass();
      },
      testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace titan::failpoint
