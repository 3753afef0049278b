// Of one caller few requests come in at a time; nobody else waits for them, and one that never ends does not for ever.

#include "controller/api/request_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace titan::api {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RequestReadsTest : public ::testing::Test {
 protected:
  using Read = std::shared_ptr<const RequestReads::Read>;

  Read enter(const std::string& actor, const std::string& name) {
    auto read = std::make_shared<const RequestReads::Read>(
        RequestReads::Read{[this, name] { begun_.push_back(name); }, [this, name] { given_up_.push_back(name); }});
    reads_.enter(actor, read);
    return read;
  }

  FakeClock clock_;
  RequestReads reads_{{.of_a_caller = 2, .patience = absl::Seconds(30)}, clock_};
  std::vector<std::string> begun_, given_up_;
};

TEST_F(RequestReadsTest, ACallersRequestsBeginInTheirOrderAsOthersOfTheirsEnd) {
  const Read one = enter("user:a", "one"), two = enter("user:a", "two");
  const Read three = enter("user:a", "three"), four = enter("user:a", "four");
  EXPECT_THAT(begun_, ElementsAre("one", "two"));
  reads_.leave("user:a", two.get());
  EXPECT_THAT(begun_, ElementsAre("one", "two", "three"));
  reads_.leave("user:a", one.get());
  reads_.leave("user:a", three.get());
  reads_.leave("user:a", four.get());
  EXPECT_THAT(begun_, ElementsAre("one", "two", "three", "four"));
  enter("user:a", "five");
  EXPECT_THAT(begun_, ElementsAre("one", "two", "three", "four", "five"));
}

TEST_F(RequestReadsTest, NobodyWaitsForAnotherCallersRequests) {
  for (const char* name : {"one", "two", "three"}) enter("user:a", name);
  enter("user:b", "theirs");
  EXPECT_THAT(begun_, ElementsAre("one", "two", "theirs"));
}

TEST_F(RequestReadsTest, WhatDoesNotEndIsGivenUpOnceOthersWaitForIt) {
  const Read slow = enter("user:a", "slow");
  clock_.advance(absl::Seconds(20));
  enter("user:a", "later");
  clock_.advance(absl::Seconds(11));
  reads_.look();
  EXPECT_THAT(given_up_, IsEmpty()) << "nobody waits for it";
  enter("user:a", "waits");
  enter("user:b", "another's");
  reads_.look();
  reads_.look();
  EXPECT_THAT(given_up_, ElementsAre("slow"));
  reads_.leave("user:a", slow.get());
  EXPECT_THAT(begun_, ElementsAre("slow", "later", "another's", "waits"));
  clock_.advance(absl::Seconds(31));
  reads_.look();
  EXPECT_THAT(given_up_, ElementsAre("slow"));
}

}  // namespace
}  // namespace titan::api
