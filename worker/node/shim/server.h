#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"

namespace titan::shim {

inline constexpr char kSocketName[] = "shim.sock";

// The shim's side of shim.sock: JSON objects, one per line, from any number of clients. Never blocks: a client that
// does not read is disconnected when too much data waits for it.
class Server {
 public:
  // Answers a request. A "subscribe" client also receives every broadcast after its answer.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

  static absl::StatusOr<Server> open(const std::string& run_folder);
  // Adds the client that was connected before the socket existed: the daemon that started this shim. It is subscribed.
  void adopt(host::Descriptor client);

  // Appends the descriptors to poll for.
  void add_waits(std::vector<pollfd>& waits) const;
  // Handles the results of the poll: reads, answers, writes and accepts.
  void handle(const std::vector<pollfd>& waits, const Handler& handler);
  void broadcast(const nlohmann::json& message);
  bool has_subscriber() const;
  // Waits up to this time until the clients have received their data.
  void flush(int milliseconds);

 private:
  struct Client {
    host::Descriptor socket;
    bool subscribed = false;
    bool broken = false;
    std::string in;
    std::string out;
  };
  explicit Server(host::Descriptor listener) : listener_(std::move(listener)) {}
  void accept_all();
  static void read_from(Client& client, const Handler& handler);
  static void send(Client& client, const nlohmann::json& message);
  static void write_to(Client& client);
  void remove_broken();

  host::Descriptor listener_;
  std::list<Client> clients_;
};

}  // namespace titan::shim
