// Files that a worker's daemon and a rank's shim read: the launch file, an attempt's folder, the shim's socket.

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/daemon/state_folder.h"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/server.h"
#include "worker/node/shim/spec.h"

namespace titan::fuzz {
namespace {

using nlohmann::json;

json parse_any(std::string_view text) { return json::parse(text, nullptr, /*allow_exceptions=*/false); }

// Returns one folder for the process, because creating it takes most of the time.
const daemon::StateFolder& state_folder() {
  static const daemon::StateFolder folder = *daemon::StateFolder::open(scratch_folder() + "/state");
  return folder;
}

}  // namespace

TITAN_FUZZ(launch, 2000) {
  const auto launch = rank_protocol::launch_from_json(parse_any(bytes));
  if (!launch.ok()) return;
  const std::string text = to_json(*launch).dump();
  const auto again = rank_protocol::launch_from_json(json::parse(text));
  require(again.ok() && to_json(*again).dump() == text, "a launch reads back to the same");
  (void)daemon::facts_of(*launch, scratch_folder() + "/none");
}

TITAN_FUZZ(shim_spec, 2000) {
  const auto spec = shim::spec_from_json(parse_any(bytes));
  if (!spec.ok()) return;
  const std::string text = to_json(*spec).dump();
  const auto again = shim::spec_from_json(json::parse(text));
  require(again.ok() && to_json(*again).dump() == text, "a spec reads back to the same");
}

// exits.jsonl, which a power failure may cut, and the spool with a rank's last events.
TITAN_FUZZ(exits, 1500) {
  Parts parts(bytes);
  const std::string_view exits = parts.next();
  scratch_file("exits.jsonl", exits);
  const auto whole = shim::read_exits(scratch_folder());
  scratch_file("rank-0.events.jsonl", parts.rest());
  (void)shim::last_error(scratch_folder(), 0);
  if (!whole.ok()) return;
  scratch_file("exits.jsonl", exits.substr(0, exits.size() / 2));
  const auto part = shim::read_exits(scratch_folder());
  require(part.ok() && part->size() <= whole->size(), "the first records of a truncated file are read");
  for (size_t i = 0; i < part->size(); ++i) {
    require((*part)[i] == (*whole)[i], "the first records are the same");
  }
}

// All files of an attempt's folder that a daemon reads when it starts.
TITAN_FUZZ(node_state, 400) {
  const daemon::StateFolder& state = state_folder();
  const std::string folder = state.run_folder({"u1", 1});
  std::filesystem::create_directories(folder);
  Parts parts(bytes);
  const std::string below = "state/jobs/u1/";
  scratch_file(below + "attempt-1/attempt.json", parts.next());
  scratch_file(below + "attempt-1/offsets.json", parts.next());
  scratch_file(below + "attempt-1/shim.json", parts.next());
  scratch_file(below + "attempt-1/launch.json", parts.next());
  scratch_file(below + "fence", parts.next());
  scratch_file("state/leader_epoch", parts.next());
  scratch_file("state/cluster", parts.rest());
  (void)state.highest_attempt("u1");
  (void)state.leader_epoch();
  (void)state.cluster();
  (void)state.repair_records();
  (void)daemon::look_at({.key = {"u1", 1}}, folder);
  for (const daemon::AttemptRecord& record : state.load_all()) {
    require(state.save(record).ok(), "a record that was read is written");
    const auto again = state.load_all();
    require(again.size() == 1 && again[0].key == record.key && again[0].phase == record.phase,
            "a written record is read again");
  }
}

// Requests of any client to a shim, and the daemon's reading of a shim's answers.
TITAN_FUZZ(shim_socket, 1500) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "a socket is created");
  static shim::Server* const server = new shim::Server(*shim::Server::open(scratch_folder()));
  const host::Descriptor client(ends[0]);
  server->adopt(host::Descriptor(ends[1]));
  const std::string text = std::string(bytes.substr(0, 65536)) + "\n{\"command\":\"status\",\"id\":\"last\"}\n";
  require(::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()),
          "the request fits into the socket's buffer");
  std::vector<pollfd> waits;
  server->add_waits(waits);
  for (pollfd& wait : waits) wait.revents = wait.fd == ends[1] ? POLLIN : 0;
  server->handle(waits, [](const json&) { return json{{"ok", true}}; });
  std::string answers(1 << 20, '\0');
  const ssize_t got = ::recv(client.get(), answers.data(), answers.size(), 0);
  require(got > 0, "a shim answers");
  // The client disconnects, and the server forgets it.
  ::shutdown(client.get(), SHUT_RDWR);
  server->handle(waits, [](const json&) { return json::object(); });
}

}  // namespace titan::fuzz
