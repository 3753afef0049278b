#pragma once

// State of each rank of the shim, and commands to ranks through their beacons.

#include <memory>
#include <string>
#include <vector>

#include "common/rank_protocol/beacon.h"
#include "common/rank_protocol/rank_exit.h"
#include "worker/node/shim/rank_process.h"

namespace titan::shim {

// Folders of an attempt on this node.
struct Folders {
  std::string run;
  std::string rank;  // Ranks write here, so its contents are not trusted.
};

struct Rank {
  int rank = 0;
  RankProcess process;
  bool running = false;
  bool unrecorded = false;  // The record of its end is not yet in exits.jsonl.
  std::unique_ptr<rank_protocol::RankExit> exit;
  std::unique_ptr<rank_protocol::BeaconReader> beacon;
  rank_protocol::BeaconCommand wanted = rank_protocol::BeaconCommand::kNone;  // Not yet written to the rank's beacon.
};

bool any_running(const std::vector<Rank>& ranks);

// Opens the rank's beacon if needed, and returns whether it has one. `folder`: where ranks write.
bool open_beacon(Rank& rank, const std::string& folder);

// Sends a command to all running ranks, except those that are already stopping.
void order(std::vector<Rank>& ranks, rank_protocol::BeaconCommand command, const std::string& folder);
// Writes pending commands. A rank without a writable beacon gets its command once it has one: call this again while
// commands_waiting().
void write_commands(std::vector<Rank>& ranks, const std::string& folder);
bool commands_waiting(const std::vector<Rank>& ranks);

}  // namespace titan::shim
