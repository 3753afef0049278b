#pragma once

// Holds what the shim knows of each of its ranks, and sends them commands through their beacons.

#include <memory>
#include <string>
#include <vector>

#include "common/rank_protocol/beacon.h"
#include "common/rank_protocol/rank_exit.h"
#include "worker/node/shim/rank_process.h"

namespace titan::shim {

// Where the files of an attempt are on this node.
struct Folders {
  std::string run;
  std::string rank;  // Where ranks write: nothing in it is to be trusted.
};

struct Rank {
  int rank = 0;
  RankProcess process;
  bool running = false;
  bool unrecorded = false;  // The record of its end is not in exits.jsonl yet.
  std::unique_ptr<rank_protocol::RankExit> exit;
  std::unique_ptr<rank_protocol::BeaconReader> beacon;
  rank_protocol::Command wanted = rank_protocol::Command::kNone;  // It is not written to the rank's beacon yet.
};

bool any_running(const std::vector<Rank>& ranks);

// Whether the rank has a beacon by now. `folder`: where ranks write.
bool open_beacon(Rank& rank, const std::string& folder);

// Sends a command to all ranks that run, except to those that are to stop already.
void order(std::vector<Rank>& ranks, rank_protocol::Command command, const std::string& folder);
// Writes the commands that wait. A rank that has no beacon yet, or none that can be written, gets its command as soon
// as it has one: call this again while commands_waiting().
void write_commands(std::vector<Rank>& ranks, const std::string& folder);
bool commands_waiting(const std::vector<Rank>& ranks);

}  // namespace titan::shim
