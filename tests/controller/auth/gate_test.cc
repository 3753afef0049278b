#include "controller/auth/gate.h"

#include "common/service/rpc/error.h"
#include "gtest/gtest.h"

namespace titan::auth {
namespace {

using rpc::Identity;
using Kind = Identity::Kind;

TEST(GateTest, CertificatesNameTheCaller) {
  const Caller node = caller_of(Identity{Kind::kNode, "n1"}).value();
  EXPECT_EQ(node.actor, "node:n1");
  EXPECT_EQ(node.node, "n1");
  EXPECT_EQ(node.role, Role::kNone);
  EXPECT_TRUE(node.projects.empty());
  const Caller root = caller_of(Identity{Kind::kAdmin, "root"}).value();
  EXPECT_EQ(root.actor, "user:root");
  EXPECT_EQ(root.role, Role::kAdmin);
  EXPECT_EQ(root.node, "");
  const Caller user = caller_of(Identity{Kind::kUser, "alice"}).value();
  EXPECT_EQ(user.actor, "user:alice");
  EXPECT_EQ(user.role, Role::kNone);
}

// A controller never calls, "*" would stand for all nodes, and a name must be one word.
TEST(GateTest, CertificatesWithoutACallerAreRefused) {
  for (const std::optional<Identity>& identity :
       {std::optional<Identity>(), std::optional(Identity{Kind::kController, ""}),
        std::optional(Identity{Kind::kNode, "*"}), std::optional(Identity{Kind::kUser, "two words"})}) {
    EXPECT_EQ(rpc::reason(caller_of(identity).status()), "CERTIFICATE_UNKNOWN");
  }
}

TEST(GateTest, RolesApplyOnlyToTheirProjects) {
  const Caller viewer = {"user:v", Role::kViewer, {"vision"}, ""};
  const Caller own = {"user:o", Role::kOperator, {"vision"}, ""};
  const Caller all = {"user:a", Role::kOperator, {kAllProjects}, ""};
  EXPECT_TRUE(check(viewer, "JobService.GetJob", "vision").ok());
  EXPECT_TRUE(check(viewer, "JobService.ListJobs", "").ok());
  EXPECT_EQ(rpc::reason(check(viewer, "JobService.GetJob", "text")), "ROLE_MISSING");
  EXPECT_EQ(rpc::reason(check(viewer, "JobService.CancelJob", "vision")), "ROLE_MISSING");
  EXPECT_TRUE(check(own, "JobService.CancelJob", "vision").ok());
  EXPECT_EQ(rpc::reason(check(own, "JobService.CancelJob", "text")), "ROLE_MISSING");
  EXPECT_EQ(rpc::reason(check(own, "NodeService.DrainNode", "")), "ROLE_MISSING");
  EXPECT_TRUE(check(all, "NodeService.DrainNode", "").ok());
  EXPECT_EQ(rpc::reason(check(all, "ClusterService.Backup", "")), "ROLE_MISSING");
  EXPECT_EQ(rpc::reason(check(all, "AuthService.CreateToken", "")), "ROLE_MISSING");
  EXPECT_EQ(rpc::reason(check(all, "WorkerService.Session", "")), "NOT_A_NODE");
  EXPECT_EQ(rpc::reason(check(admin("local:0"), "JobService.NoSuchMethod", "")), "METHOD_UNKNOWN");
}

}  // namespace
}  // namespace titan::auth
