#include "controller/auth/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"

namespace titan::auth {
namespace {

struct Address {
  int family = AF_UNSPEC;
  std::array<uint32_t, 4> words = {};  // In network byte order.
};

std::optional<Address> parse(const std::string& text) {
  Address address;
  for (const int family : {AF_INET, AF_INET6}) {
    address.family = family;
    if (inet_pton(family, text.c_str(), address.words.data()) == 1) return address;
  }
  return std::nullopt;
}

// Parsed addresses of a connection, both of one family.
struct Ends {
  Address client, server;
};

std::optional<Ends> ends_of(const LocalConnection& connection) {
  const std::optional<Address> client = parse(connection.client), server = parse(connection.server);
  if (!client || !server || client->family != server->family) return std::nullopt;
  return Ends{*client, *server};
}

absl::Status no_such_socket(const LocalConnection& connection) {
  return absl::NotFoundError(absl::StrCat("no open socket at ", connection.client, " port ", connection.client_port,
                                          " is connected to ", connection.server, " port ", connection.server_port));
}

class Netlink {
 public:
  Netlink() : fd_(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {}
  ~Netlink() {
    if (fd_ >= 0) close(fd_);
  }
  Netlink(const Netlink&) = delete;
  Netlink& operator=(const Netlink&) = delete;

  absl::Status send(const void* bytes, size_t size) const {
    const bool sent = fd_ >= 0 && ::send(fd_, bytes, size, 0) == static_cast<ssize_t>(size);
    return sent ? absl::OkStatus() : errno_status(errno, "ask the kernel about a socket");
  }
  // Does not wait: the kernel answers within send().
  absl::StatusOr<size_t> receive(void* bytes, size_t size) const {
    const ssize_t got = recv(fd_, bytes, size, MSG_DONTWAIT);
    if (got < 0) return errno_status(errno, "read the kernel's answer about a socket");
    return static_cast<size_t>(got);
  }

 private:
  const int fd_;
};

struct Question {
  nlmsghdr header = {};
  inet_diag_req_v2 request = {};
};

Question question(const Ends& ends, const LocalConnection& connection) {
  Question asked;
  asked.header.nlmsg_len = sizeof asked;
  asked.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  asked.header.nlmsg_flags = NLM_F_REQUEST;
  asked.request.sdiag_family = static_cast<uint8_t>(ends.client.family);
  asked.request.sdiag_protocol = IPPROTO_TCP;
  asked.request.idiag_states = ~0U;
  inet_diag_sockid& id = asked.request.id;
  id.idiag_sport = htons(static_cast<uint16_t>(connection.client_port));
  id.idiag_dport = htons(static_cast<uint16_t>(connection.server_port));
  memcpy(id.idiag_src, ends.client.words.data(), sizeof id.idiag_src);
  memcpy(id.idiag_dst, ends.server.words.data(), sizeof id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return asked;
}

// Formats an address like the tables: each word in host byte order, in hexadecimal.
std::string in_table(const std::array<uint32_t, 4>& words, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppendFormat(&out, "%08X", words[static_cast<size_t>(i)]);
  return out;
}

struct Row {
  std::string local, remote, state;
  uint64_t uid = 0, inode = 0;
};

std::optional<Row> read_row(const std::string& line) {
  Row row;
  std::string number, queues, timer, retransmits, timeout;
  std::istringstream in(line);
  in >> number >> row.local >> row.remote >> row.state >> queues >> timer >> retransmits >> row.uid >> timeout >>
      row.inode;
  if (!in) return std::nullopt;
  return row;
}

// Returns the owner in the row that has these ends. Errors: NotFound when no row has them, or rows name different
// owners.
absl::StatusOr<uid_t> owner_in(const std::string& path, const std::string& client, const std::string& server,
                               const LocalConnection& connection) {
  std::ifstream table(path);
  std::optional<uint64_t> found;
  for (std::string line; std::getline(table, line);) {
    const std::optional<Row> row = read_row(line);
    const bool is_it = row && row->local == client && row->remote == server && row->state == "01" && row->inode != 0;
    if (!is_it) continue;
    if (found && *found != row->uid) return no_such_socket(connection);
    found = row->uid;
  }
  if (!found) return no_such_socket(connection);
  return static_cast<uid_t>(*found);
}

}  // namespace

absl::StatusOr<uid_t> owner_by_netlink(const LocalConnection& connection) {
  const std::optional<Ends> ends = ends_of(connection);
  if (!ends) return no_such_socket(connection);
  const Netlink kernel;
  const Question asked = question(*ends, connection);
  TITAN_RETURN_IF_ERROR(kernel.send(&asked, sizeof asked));
  alignas(nlmsghdr) std::array<char, 4096> answer;
  TITAN_ASSIGN_OR_RETURN(const size_t size, kernel.receive(answer.data(), answer.size()));
  nlmsghdr header;
  if (size < sizeof header) return no_such_socket(connection);
  memcpy(&header, answer.data(), sizeof header);
  inet_diag_msg socket;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || size < NLMSG_HDRLEN + sizeof socket)
    return no_such_socket(connection);
  memcpy(&socket, answer.data() + NLMSG_HDRLEN, sizeof socket);
  if (socket.idiag_state != TCP_ESTABLISHED || socket.idiag_inode == 0) return no_such_socket(connection);
  return socket.idiag_uid;
}

absl::StatusOr<uid_t> owner_by_table(const LocalConnection& connection, const std::string& folder) {
  const std::optional<Ends> ends = ends_of(connection);
  if (!ends) return no_such_socket(connection);
  const std::string client_port = absl::StrFormat(":%04X", connection.client_port);
  const std::string server_port = absl::StrFormat(":%04X", connection.server_port);
  const auto look = [&](const std::string& table, const Address& client, const Address& server, int words) {
    return owner_in(folder + table, in_table(client.words, words) + client_port,
                    in_table(server.words, words) + server_port, connection);
  };
  if (ends->client.family == AF_INET6) return look("/tcp6", ends->client, ends->server, 4);
  auto plain = look("/tcp", ends->client, ends->server, 1);
  if (plain.ok()) return plain;
  // Dual-stack sockets, which gRPC uses, have IPv4 addresses in IPv6 form.
  const auto mapped = [](const Address& plain) { return Address{AF_INET6, {0, 0, htonl(0xFFFF), plain.words[0]}}; };
  return look("/tcp6", mapped(ends->client), mapped(ends->server), 4);
}

namespace {

// A kernel without sock_diag answers as if no socket existed, so this asks about one that exists.
bool kernel_answers() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  bool answers = bind(listener, raw, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, raw, &size) == 0 &&
                 connect(client, raw, size) == 0;
  const int server_port = ntohs(address.sin_port);
  answers = answers && getsockname(client, raw, &size) == 0 &&
            owner_by_netlink({"127.0.0.1", ntohs(address.sin_port), "127.0.0.1", server_port}).ok();
  for (const int fd : {client, listener}) {
    if (fd >= 0) close(fd);
  }
  return answers;
}

}  // namespace

absl::StatusOr<uid_t> socket_owner(const LocalConnection& connection) {
  // Reading the table takes a thousand times as long, so it does not serve as a second try for an unknown socket.
  static const bool answers = kernel_answers();
  return answers ? owner_by_netlink(connection) : owner_by_table(connection);
}

}  // namespace titan::auth
