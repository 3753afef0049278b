#include "worker/node/shim/ranks.h"

#include <algorithm>
#include <utility>

#include "common/base/status/status.h"
#include "common/rank_protocol/spool.h"

namespace titan::shim {
namespace {

using rank_protocol::BeaconCommand;

absl::Status write_command(rank_protocol::BeaconReader& beacon, BeaconCommand wanted) {
  TITAN_RETURN_IF_ERROR(beacon.look());
  const rank_protocol::BeaconPage& page = beacon.page();
  const auto before = static_cast<BeaconCommand>(page.command.load());
  if (before == BeaconCommand::kStopAndSave) return absl::OkStatus();
  if (before != wanted) return beacon.write(page.command, static_cast<uint32_t>(wanted));
  // The same command is requested again. If the rank has not seen the first one yet, they are one request.
  if (page.command_seen.load() != page.command.load()) return absl::OkStatus();
  return beacon.write(page.command_seen, uint32_t{0});
}

}  // namespace

bool any_running(const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.running; });
}

bool open_beacon(Rank& rank, const std::string& folder) {
  if (rank.beacon != nullptr) return true;
  auto beacon = rank_protocol::BeaconReader::open(rank_protocol::beacon_path(folder, rank.rank));
  if (beacon.ok()) rank.beacon = *std::move(beacon);
  return rank.beacon != nullptr;
}

void order(std::vector<Rank>& ranks, BeaconCommand command, const std::string& folder) {
  for (Rank& rank : ranks) {
    if (rank.running && rank.wanted != BeaconCommand::kStopAndSave) rank.wanted = command;
  }
  write_commands(ranks, folder);
}

void write_commands(std::vector<Rank>& ranks, const std::string& folder) {
  for (Rank& rank : ranks) {
    if (rank.wanted == BeaconCommand::kNone || !rank.running) continue;
    if (!open_beacon(rank, folder)) continue;
    if (write_command(*rank.beacon, rank.wanted).ok()) rank.wanted = BeaconCommand::kNone;
  }
}

bool commands_waiting(const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const Rank& rank) { return rank.running && rank.wanted != BeaconCommand::kNone; });
}

}  // namespace titan::shim
