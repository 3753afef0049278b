#include "common/base/text/host_port.h"

#include "gtest/gtest.h"

namespace titan {
namespace {

// Every flag and field that takes an address parses it with this function.
TEST(HostPortTest, CutsAtTheLastColon) {
  const std::optional<HostPort> name = split_host_port("node-1.example:7700");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->host, "node-1.example");
  EXPECT_FALSE(name->bracketed);
  EXPECT_EQ(name->port, 7700);
  const std::optional<HostPort> six = split_host_port("[fe80::1]:0");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->host, "fe80::1");
  EXPECT_TRUE(six->bracketed);
  EXPECT_EQ(six->port, 0);
  const std::optional<HostPort> bare = split_host_port("::1:65535");
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->host, "::1");
  EXPECT_FALSE(bare->bracketed);
}

TEST(HostPortTest, RefusesMissingHostOrPort) {
  for (const char* bad : {"", ":", "nonsense", ":80", "host:", "host:-1", "host:65536", "host:http"}) {
    EXPECT_FALSE(split_host_port(bad)) << bad;
  }
}

}  // namespace
}  // namespace titan
