#include "controller/store/etcd/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EtcdAddressTest, ParsesMembersAndPrefix) {
  const EtcdAddress one = *parse_etcd_address("etcd://10.0.0.1:2379");
  EXPECT_THAT(one.members, ElementsAre("10.0.0.1:2379"));
  EXPECT_EQ(one.prefix, "titan/");
  const EtcdAddress three = *parse_etcd_address("etcd://a:1,b.example:2,[::1]:3/team/blue");
  EXPECT_THAT(three.members, ElementsAre("a:1", "b.example:2", "[::1]:3"));
  EXPECT_EQ(three.prefix, "team/blue/");
  EXPECT_EQ(parse_etcd_address("etcd://a:1/x/")->prefix, "x/");
  EXPECT_EQ(parse_etcd_address("etcd://a:1/")->prefix, "titan/");
}

TEST(EtcdAddressTest, ErrorsNameTheMistake) {
  const auto wrong = [](const std::string& text) {
    const absl::Status status = parse_etcd_address(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  EXPECT_THAT(wrong("10.0.0.1:2379"), HasSubstr("etcd://HOST:PORT"));
  EXPECT_THAT(wrong("etcd://"), HasSubstr("HOST:PORT"));
  EXPECT_THAT(wrong("etcd://a"), HasSubstr("'a'"));
  EXPECT_THAT(wrong("etcd://a:1,/x"), HasSubstr("HOST:PORT"));
  EXPECT_THAT(wrong("etcd://a:0"), HasSubstr("1 to 65535"));
}

}  // namespace
}  // namespace titan::store
