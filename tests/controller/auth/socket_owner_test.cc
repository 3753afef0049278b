#include "controller/auth/socket_owner.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace titan::auth {
namespace {

constexpr uid_t kOther = 65534;

sockaddr_in6 address_of(const char* host, int port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET6, host, &address.sin6_addr);
  return address;
}

int port_of(int fd) {
  sockaddr_in6 address{};
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin6_port);
}

// Listens on one socket for IPv4 and IPv6, as gRPC does.
class SocketOwnerTest : public ::testing::Test {
 protected:
  SocketOwnerTest() {
    const sockaddr_in6 any = address_of("::", 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
  }
  ~SocketOwnerTest() override { close(listener_); }

  int connect_to(const char* host) const {
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in6 address = address_of(host, port_of(listener_));
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << host;
    return fd;
  }
  LocalConnection connection(const std::string& address, int fd) const {
    return {address, port_of(fd), address, port_of(listener_)};
  }

  const int listener_ = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

TEST_F(SocketOwnerTest, NetlinkAndTableNameTheUser) {
  for (const auto& [host, client] : {std::pair("::ffff:127.0.0.1", "127.0.0.1"), std::pair("::1", "::1")}) {
    const int fd = connect_to(host);
    EXPECT_EQ(socket_owner(connection(client, fd)).value(), geteuid()) << host;
    EXPECT_EQ(owner_by_netlink(connection(client, fd)).value(), geteuid()) << host;
    EXPECT_EQ(owner_by_table(connection(client, fd)).value(), geteuid()) << host;
    close(fd);
  }
}

// One user may connect from 127.0.0.1 to 127.0.0.2 and another user from the same port to 127.0.0.1: a lookup must not
// confuse the two connections.
TEST_F(SocketOwnerTest, BothEndsMustMatch) {
  const int fd = connect_to("::ffff:127.0.0.2");
  LocalConnection queried = connection("127.0.0.1", fd);
  for (const auto& owner : {socket_owner(queried), owner_by_netlink(queried), owner_by_table(queried)})
    EXPECT_EQ(owner.status().code(), absl::StatusCode::kNotFound);
  queried.server = "127.0.0.2";
  for (const auto& owner : {socket_owner(queried), owner_by_netlink(queried), owner_by_table(queried)})
    EXPECT_EQ(owner.value(), geteuid());
  queried.server = "::1";
  EXPECT_EQ(socket_owner(queried).status().code(), absl::StatusCode::kNotFound);
  close(fd);
}

// For a socket that its program has closed the kernel names root instead of the owner: a client that calls and closes
// at once must not be taken for root.
TEST_F(SocketOwnerTest, ClosedSocketsHaveNoOwner) {
  const int fd = connect_to("::ffff:127.0.0.1");
  const LocalConnection closed = connection("127.0.0.1", fd);
  const int accepted =
      accept(listener_, nullptr, nullptr);  // Stays open, so that the kernel does not forget the client's end.
  ASSERT_EQ(write(fd, "call", 4), 4);
  close(fd);
  EXPECT_EQ(owner_by_netlink(closed).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(owner_by_table(closed).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_owner(closed).status().code(), absl::StatusCode::kNotFound);
  close(accepted);
}

TEST_F(SocketOwnerTest, PortsMustMatchOneConnection) {
  const int fd = connect_to("::ffff:127.0.0.1");
  LocalConnection other = connection("127.0.0.1", fd);
  ++other.server_port;
  EXPECT_EQ(socket_owner(other).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_owner(connection("nonsense", fd)).status().code(), absl::StatusCode::kNotFound);
  close(fd);
}

// The owner is the user of the connecting process, not the user of the listening one.
TEST_F(SocketOwnerTest, ConnectionOfAnotherUserNamesThatUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  int ports[2], release[2];
  ASSERT_EQ(pipe(ports), 0);
  ASSERT_EQ(pipe(release), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(kOther) != 0) _exit(1);
    const int port = port_of(connect_to("::ffff:127.0.0.1"));
    char byte = 0;
    const bool sent = write(ports[1], &port, sizeof port) == sizeof port;
    _exit(sent && read(release[0], &byte, 1) == 1 ? 0 : 1);
  }
  int port = 0;
  ASSERT_EQ(read(ports[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const LocalConnection theirs = {"127.0.0.1", port, "127.0.0.1", port_of(listener_)};
  EXPECT_EQ(owner_by_netlink(theirs).value(), kOther);
  EXPECT_EQ(owner_by_table(theirs).value(), kOther);
  ASSERT_EQ(write(release[1], "x", 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int fd : {ports[0], ports[1], release[0], release[1]}) close(fd);
}

// If the table lists two users for one connection, the owner is unknown. Other connections from the same port do not
// matter.
TEST_F(SocketOwnerTest, TwoUsersOfOnePortGiveNoOwner) {
  std::string folder = ::testing::TempDir() + "titan-owner-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto row = [](const char* remote, int uid) {
    return absl::StrCat("   0: 0100007F:9C40 ", remote, ":1E14 01 00000000:00000000 00:00000000 00000000 ", uid,
                        " 0 77 1\n");
  };
  const auto write_table = [&](const std::string& rows) {
    std::ofstream(folder + "/tcp") << "  sl  local_address rem_address   st\n" << rows;
  };
  const LocalConnection queried = {"127.0.0.1", 40000, "127.0.0.1", 7700};
  write_table(row("0100007F", 5));
  EXPECT_EQ(owner_by_table(queried, folder).value(), 5U);
  write_table(row("0100007F", 5) + row("0200007F", 6));
  EXPECT_EQ(owner_by_table(queried, folder).value(), 5U);
  write_table(row("0100007F", 5) + row("0100007F", 6));
  EXPECT_EQ(owner_by_table(queried, folder).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace titan::auth
