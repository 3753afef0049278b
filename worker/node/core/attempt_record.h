#pragma once

#include <compare>
#include <string>
#include <vector>

#include "common/rank_protocol/rank_exit.h"

namespace titan::node {

struct AttemptKey {
  std::string job_uid;
  int number = 0;
  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;  // NOLINT(modernize-use-nullptr): misread
};

// Job uids become folder names: letters, digits, '-', '_' and '.', not starting with '.'.
bool valid_uid(const std::string& uid);

// Why a node does not do what it was told: for the controller's policy and for people.
struct Refusal {
  std::string reason;  // UPPER_SNAKE; empty: no refusal.
  std::string message;
  explicit operator bool() const { return !reason.empty(); }
};

// What a node must know of an attempt after a restart of its daemon.
struct AttemptRecord {
  AttemptKey key;
  bool leader = false;
  std::vector<int> ranks;  // Of this node, in local order.
  std::string dump_folder;
  std::string token;
  std::string folder_id;  // Of the dump folder: what the controller knows, then on the leader what is there.
  std::string run_as;     // The unix user whose job it is: see v1.Prepare.
  bool run_as_local = false;
  double orphan_timeout_seconds = 600;
  std::vector<int> devices;  // Indices that this attempt's ranks use.
  enum class Phase { kPreparing, kLive, kEnded, kRefused, kForgotten };
  Phase phase = Phase::kPreparing;
  std::string error_reason;
  std::string error_message;
  std::vector<rank_protocol::RankExit> exits;  // Once it has ended: also of ranks that nobody saw end.
};

}  // namespace titan::node
