#include "controller/auth/caller.h"

#include "gtest/gtest.h"

namespace titan::auth {
namespace {

TEST(CallerTest, ActorsAreOneWord) {
  EXPECT_EQ(user_actor("alice.b@example.com"), "user:alice.b@example.com");
  for (const char* bad : {"", "two words", "new\nline", "a:b", "\xc3\xa4"}) EXPECT_EQ(user_actor(bad), "") << bad;
  EXPECT_EQ(user_actor(std::string(65, 'a')), "");
  EXPECT_EQ(peer_actor("ipv4:10.0.0.7:40312"), "peer:10.0.0.7");
  EXPECT_EQ(peer_actor("ipv6:[::1]:40312"), "peer:[::1]");
  EXPECT_EQ(peer_actor("ipv6:%5B::1%5D:40312"), "peer:[::1]");
  EXPECT_EQ(peer_actor("unix:/run/titan sock"), "peer:unix:/run/titan_sock");
}

// A name of another form belongs to no project.
TEST(CallerTest, JobsBelongToTheProjectInTheirName) {
  EXPECT_EQ(project_of("projects/vision/jobs/a"), "vision");
  for (const char* other : {"", "a", "projects/", "projects/vision", "nodes/n1", "x/projects/vision/jobs/a"}) {
    EXPECT_EQ(project_of(other), "") << other;
  }
}

TEST(CallerTest, SeesOnlyItsProjects) {
  const Caller caller = {"user:alice", Role::kViewer, {"vision", "text"}, ""};
  EXPECT_TRUE(caller.sees("vision"));
  EXPECT_FALSE(caller.sees("default"));
  EXPECT_FALSE(caller.sees(""));
  EXPECT_FALSE(caller.sees_all());
  EXPECT_TRUE(admin("local:0").sees("default"));
  EXPECT_TRUE(admin("local:0").sees_all());
  EXPECT_FALSE(Caller().sees("default"));
}

}  // namespace
}  // namespace titan::auth
