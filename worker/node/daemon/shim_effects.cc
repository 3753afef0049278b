// Performs the core's effects on processes: starts, finds and kills shims, and communicates with them.

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "worker/node/daemon/effects.h"
#include "worker/node/daemon/rank_environment.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/shim/process.h"

namespace titan::daemon {
namespace {

using nlohmann::json;

FailpointPair spawn_points{failpoint::Failpoint("worker.spawn"), failpoint::Failpoint("worker.spawned")};
failpoint::Failpoint send_to_shim_point("worker.tell"), found_point("worker.shim.found");

json to_json(const node::ShimCommand& command) {
  switch (command.kind) {
    case node::ShimCommand::Kind::kStart:
      return {{"command", "start"},
              {"id", "start"},
              {"store_host", command.store_host},
              {"store_port", command.store_port}};
    case node::ShimCommand::Kind::kStop:
      return {{"command", "stop"},
              {"save", command.save},
              {"grace_milliseconds", command.grace_milliseconds},
              {"reason", command.reason}};
    case node::ShimCommand::Kind::kCheckpoint:
      return {{"command", "checkpoint"}};
    case node::ShimCommand::Kind::kLease:
      return {{"command", "lease"}, {"id", "lease"}, {"silence_milliseconds", command.silence_milliseconds}};
    case node::ShimCommand::Kind::kStacks:
      return {{"command", "stacks"}, {"id", "stacks"}, {"patience_milliseconds", command.timeout_milliseconds}};
  }
  return json::object();
}

}  // namespace

void Daemon::perform(node::SpawnShim& effect) {
  shims_.run([this, post = loop_.poster(), effect, binary = options_.shim_binary, folder = run_folder(effect.key),
              environment = rank_environment(environ, options_.pass_env)] {
    absl::StatusOr<SpawnedShim> spawned =
        with_failpoints(spawn_points, [&] { return spawn_shim(binary, folder, environment); });
    node::ShimSpawned done{effect.op, 0, 0, ""};
    const auto socket = std::make_shared<host::Descriptor>();
    if (spawned.ok()) {
      done.pid = spawned->pid;
      done.start_ticks = shim::start_ticks(spawned->pid);
      *socket = std::move(spawned->socket);
    } else {
      done.error = text_of(spawned.status());
    }
    post([this, done, socket, key = effect.key] {
      if (*socket) add_link(key, done.op, std::move(*socket), /*subscribe=*/false);
      feed(done);
    });
  });
}

void Daemon::perform(node::FindShim& effect) {
  shims_.run([this, post = loop_.poster(), effect, folder = run_folder(effect.key)] {
    node::ShimLookup found = find_shim(folder);
    found_point.pass();
    found.op = effect.op;
    const auto socket = std::make_shared<host::Descriptor>();
    if (found.state == node::ShimLookup::State::kSilent || found.state == node::ShimLookup::State::kUnknown) {
      absl::StatusOr<host::Descriptor> connected = connect_to_shim(folder);
      if (connected.ok()) {
        found.state = node::ShimLookup::State::kLinked;
        *socket = *std::move(connected);
      }
    }
    post([this, found, socket, key = effect.key] {
      if (*socket) add_link(key, found.op, std::move(*socket), /*subscribe=*/true);
      feed(found);
    });
  });
}

void Daemon::perform(node::CheckRanks& effect) {
  run_in(checks_, [state = state_, effect] {
    return check_ranks(effect, state->run_folder(effect.key), state->rank_folder(effect.key));
  });
}

void Daemon::perform(node::KillShim& effect) {
  const auto pid = static_cast<pid_t>(effect.pid);
  if (shim::process_state(pid, effect.start_ticks).value_or(0) != 0) ::kill(pid, SIGKILL);
}

void Daemon::perform(node::SendToShim& effect) {
  send_to_shim_point.pass();
  const auto found = links_.find(effect.key);
  if (found != links_.end() && found->second.number == effect.link) found->second.link->send(to_json(effect.command));
}

void Daemon::add_link(const AttemptKey& key, node::Op number, host::Descriptor socket, bool subscribe) {
  Link& kept = links_[key];
  kept.number = number;
  kept.link = std::make_unique<ShimLink>(
      loop_, std::move(socket),
      ShimLink::Callbacks{[this, key, number](const json& message) { on_shim_message(key, number, message); },
                          [this, key, number] {
                            const auto found = links_.find(key);
                            if (found != links_.end() && found->second.number == number) links_.erase(found);
                            feed(node::ShimClosed{key, number});
                          }});
  if (subscribe) kept.link->send({{"command", "subscribe"}, {"id", kSubscribe}});
}

void Daemon::on_shim_message(const AttemptKey& key, node::Op link, const json& message) {
  using Kind = node::ShimEvent::Kind;
  node::ShimEvent said;
  said.key = key;
  said.link = link;
  try {
    const std::string event = message.value("event", "");
    const std::string id = message.value("id", "");
    if (event == "ready" || id == kSubscribe) {
      said.kind = Kind::kStatus;
      said.status = status_from_json(message);
    } else if (event == "exit") {
      said.kind = Kind::kExit;
      absl::StatusOr<rank_protocol::RankExit> exit =
          rank_protocol::exit_from_json(message.value("exit", json::object()));
      if (!exit.ok()) return;
      said.exit = *std::move(exit);
    } else if (event == "ended") {
      said.kind = Kind::kEnded;
      said.status = status_from_json(message);
    } else if (id == "start") {
      const bool ok = message.value("ok", false);
      said.kind = ok ? Kind::kStarted : Kind::kStartFailed;
      if (ok) said.status = status_from_json(message);
      if (!ok) said.error = text::valid_utf8(message.value("error", "the shim gave no reason"));
    } else if (event == "stacks" || (id == "stacks" && !message.value("ok", false))) {
      said.kind = Kind::kStacks;
      said.error = text::valid_utf8(message.value("error", ""));
    } else if (id == "lease") {
      said.kind = Kind::kLease;
      said.log_bytes_dropped =
          message.value("log_dropped_bytes", int64_t{0}) + message.value("log_lost_bytes", int64_t{0});
    } else {
      return;
    }
  } catch (const json::exception& error) {
    return log_about(key, journal::Level::kError, "ShimNotUnderstood",
                     absl::StrCat("its shim sent an invalid message: ", error.what()));
  }
  feed(said);
}

}  // namespace titan::daemon
