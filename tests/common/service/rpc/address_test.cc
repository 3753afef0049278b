#include "common/service/rpc/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::rpc {
namespace {

// A mistyped address is rejected with the accepted forms, before anybody waits for a connection.
TEST(AddressTest, AcceptsOnlyAddressesForGrpc) {
  for (const char* good :
       {"127.0.0.1:7700", "controller-1.example:1", "[::1]:7700", "localhost:65535", "unix:/tmp/s"}) {
    EXPECT_EQ(check_address("--controller", good), absl::OkStatus()) << good;
  }
  for (const char* bad : {"", "nonsense", "host:", ":7700", "host:0", "host:65536", "host:-1", "host:http", "::1:7700",
                          "a b:7700", "http://host:7700", "unix:", "[]:7700", "[host]:7700"}) {
    const absl::Status status = check_address("--controller", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("--controller is '")) << bad;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("HOST:PORT")) << bad;
  }
  EXPECT_EQ(check_address("--listen", "0.0.0.0:0", Port::kMayBeFree), absl::OkStatus());
}

// One wrong address of several is named; an empty list or an empty address is an error.
TEST(AddressTest, SeveralAreSplitAndCheckedOneByOne) {
  EXPECT_THAT(split_addresses("--controller", "a:1").value(), ::testing::ElementsAre("a:1"));
  EXPECT_THAT(split_addresses("--controller", "a:1,[::1]:2,unix:/s").value(),
              ::testing::ElementsAre("a:1", "[::1]:2", "unix:/s"));
  for (const char* bad : {"", ",", "a:1,", ",a:1", "a:1,,b:2", "a:1, b:2", "a:1;b:2"}) {
    EXPECT_EQ(split_addresses("--controller", bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(split_addresses("--controller", "a:1,b:http").status().message(), ::testing::HasSubstr("'b:http'"));
}

// A name that only looks like a loopback address belongs to another machine.
TEST(AddressTest, RecognizesLocalAddresses) {
  for (const char* local : {"127.0.0.1:7700", "127.1.2.3:0", "[::1]:7700", "localhost:1", "unix:/tmp/s"}) {
    EXPECT_TRUE(is_local(local)) << local;
  }
  for (const char* other : {"0.0.0.0:7700", "10.0.0.1:7700", "[::]:7700", "host:1", "127.example.com:1", "*:7700",
                            "127.0.0.1.example:1", "localhost.example:1", "[fe80::1]:1", "nonsense"}) {
    EXPECT_FALSE(is_local(other)) << other;
  }
}

}  // namespace
}  // namespace titan::rpc
