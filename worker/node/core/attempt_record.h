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

// Returns whether a job uid may become a folder name: 1 to 128 letters, digits, '-', '_' and '.', not starting with
// '.'.
bool valid_uid(const std::string& uid);

// Why a node refuses a command: `reason` for the controller's policy, `message` for people.
struct Refusal {
  std::string reason;  // UPPER_SNAKE. Empty: no refusal.
  std::string message;
  explicit operator bool() const { return !reason.empty(); }
};

// The facts about an attempt that a node needs after its daemon restarts.
struct AttemptRecord {
  AttemptKey key;
  bool leader = false;
  std::vector<int> ranks;  // The ranks on this node, in local order.
  std::string dump_folder;
  std::string token;
  std::string folder_id;  // The dump folder's id, known to the controller or, once prepared, found by the leader.
  std::string run_as;     // The unix user that submitted the job; see v1.Prepare.
  bool run_as_local = false;
  double orphan_timeout_seconds = 600;
  std::vector<int> devices;  // Indices of the devices that the ranks use.
  enum class Phase { kPreparing, kLive, kEnded, kRefused, kForgotten };
  Phase phase = Phase::kPreparing;
  std::string error_reason;
  std::string error_message;
  std::vector<rank_protocol::RankExit> exits;  // Set at the end, also for ranks whose end nobody observed.
};

}  // namespace titan::node
