#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "gtest/gtest.h"
#include "worker/node/shim/sockets.h"

namespace titan::shim {
namespace {

bool reachable(const TcpListener& listener, const char* address) {
  const host::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(listener.port));
  ::inet_pton(AF_INET, address, &to.sin_addr);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(ListenerTest, ListensOnlyOnTheGivenAddress) {
  const absl::StatusOr<TcpListener> one = listen_on("127.0.0.2");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_GT(one->port, 0);
  EXPECT_TRUE(reachable(*one, "127.0.0.2"));
  EXPECT_FALSE(reachable(*one, "127.0.0.1"));
}

TEST(ListenerTest, ListensOnTheAddressOfAName) {
  const absl::StatusOr<TcpListener> one = listen_on("localhost");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(reachable(*one, "127.0.0.2"));
}

// An address of another host opens no socket, and the error names the flag.
TEST(ListenerTest, ForeignAddressOpensNoSocket) {
  for (const char* not_ours : {"192.0.2.1", "2001:db8::1", "[2001:db8::1]"}) {
    const absl::StatusOr<TcpListener> none = listen_on(not_ours);
    ASSERT_FALSE(none.ok()) << not_ours;
    EXPECT_NE(none.status().message().find("--address"), std::string::npos) << none.status();
  }
  for (const char* nothing : {"", "[]", "host.invalid"}) {
    EXPECT_EQ(listen_on(nothing).status().code(), absl::StatusCode::kInvalidArgument) << nothing;
  }
}

TEST(ListenerTest, OnlyWildcardsListenOnAllAddresses) {
  const absl::StatusOr<TcpListener> all = listen_on("0.0.0.0");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE(reachable(*all, "127.0.0.2"));
  for (const char* word : {"0.0.0.0", "0", "::", "[::]"}) EXPECT_TRUE(is_wildcard(word)) << word;
  for (const char* word : {"127.0.0.1", "::1", "localhost", "", "host.invalid"})
    EXPECT_FALSE(is_wildcard(word)) << word;
}

TEST(ListenerTest, RecognizesLoopbackAddresses) {
  for (const char* here : {"127.0.0.1", "127.0.1.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(is_loopback(here)) << here;
  }
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1", "0.0.0.0", "", "host.invalid"}) {
    EXPECT_FALSE(is_loopback(elsewhere)) << elsewhere;
  }
  EXPECT_EQ(interface_of("127.0.0.1"), "lo");
  EXPECT_EQ(interface_of("192.0.2.1"), "");
  EXPECT_EQ(interface_of("0.0.0.0"), "");
}

}  // namespace
}  // namespace titan::shim
