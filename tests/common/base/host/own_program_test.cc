// A program finds the files next to it from any working directory, and through links too.
#include <errno.h>
#include <gtest/gtest.h>

#include "common/base/host/host_facts.h"

namespace titan::host {
namespace {

TEST(OwnProgramTest, FolderHoldsTheRunningProgram) {
  const std::filesystem::path folder = folder_of_program();
  EXPECT_TRUE(folder.is_absolute());
  EXPECT_TRUE(std::filesystem::equivalent(folder / program_invocation_short_name, "/proc/self/exe"));
}

}  // namespace
}  // namespace titan::host
