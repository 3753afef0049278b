#include "common/base/host/host_facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::host {
namespace {

using ::testing::HasSubstr;

TEST(FactsTest, ListsExistingFactsAndOmitsMissingOnes) {
  const auto all = facts({::testing::TempDir(), "/no/such/folder"});
  EXPECT_THAT(all.at("system"), HasSubstr("Linux"));
  EXPECT_THAT(all.at("memory"), HasSubstr("MemTotal"));
  EXPECT_THAT(all.at("limits"), HasSubstr("Max open files"));
  EXPECT_THAT(all.at("disk " + ::testing::TempDir()), HasSubstr("bytes free"));
  EXPECT_EQ(all.count("disk /no/such/folder"), 0U);
  for (const auto& [name, fact] : all) EXPECT_NE(fact, "") << name;
}

}  // namespace
}  // namespace titan::host
