#include "common/service/rpc/identity.h"

#include "gtest/gtest.h"

namespace titan::rpc {
namespace {

using Kind = Identity::Kind;

TEST(IdentityTest, RoundTripsThroughTheUri) {
  for (const auto& [identity, uri] : {std::pair(Identity{Kind::kController, ""}, "titan:controller"),
                                      {Identity{Kind::kNode, "n1"}, "titan:node:n1"},
                                      {Identity{Kind::kUser, "alice"}, "titan:user:alice"},
                                      {Identity{Kind::kAdmin, "bob"}, "titan:admin:bob"}}) {
    EXPECT_EQ(to_uri(identity), uri);
    const auto read = identity_in({"https://elsewhere", uri});
    ASSERT_TRUE(read) << uri;
    EXPECT_EQ(read->kind, identity.kind) << uri;
    EXPECT_EQ(read->name, identity.name) << uri;
  }
}

// A certificate with two identities has none.
TEST(IdentityTest, RefusesAmbiguousIdentities) {
  EXPECT_FALSE(identity_in({}));
  EXPECT_FALSE(identity_in({"titan:node:n1", "titan:admin:bob"}));
  for (const char* bad : {"titan:", "titan:node:", "titan:root:x", "titan:controller:x", "Titan:node:n1", "node:n1"}) {
    EXPECT_FALSE(identity_in({bad})) << bad;
  }
}

}  // namespace
}  // namespace titan::rpc
