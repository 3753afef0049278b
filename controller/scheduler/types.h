#pragma once

// Inputs and outputs of the scheduler.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace titan::scheduler {

// Names a job in messages to users who may not see it.
inline constexpr char kForeignJob[] = "a job of another project";

// Properties of a node, as the core sets them.
struct NodeProperties {
  std::string name;
  std::string device;  // Kind: "cuda", "cpu".
  int devices = 0;     // Numbered from 0. Each takes one rank.
  // Position as a path: "row2/rack7". Nodes with one path are near each other, and so are neighbours in the order of
  // paths. Empty everywhere: one domain.
  std::string domain;
  bool ready = true;
  bool cordoned = false;
  bool unusable = false;  // Its worker is connected and cannot prepare ranks.
  bool operator==(const NodeProperties&) const = default;
};

// A job that waits for devices.
struct PendingJob {
  std::string uid;
  std::string name;  // For messages.
  std::string device;
  int ranks = 1;
  int ranks_per_node = 0;  // Exactly this many on a node, whatever `unit` is. 0: as few nodes as possible.
  // Ranks [k * unit, (k + 1) * unit) share a node. The unit is the tensor degree: its axis is the innermost of the
  // mesh.
  int unit = 1;
  int priority = 0;
  int64_t order = 0;        // Order of submission.
  bool recovering = false;  // Goes before other jobs (see Order), because its surviving nodes wait for it.
  // It is stopped when it has run this long. Backfill relies on this.
  absl::Duration time_limit = absl::InfiniteDuration();
  // Devices by node that the job came from. Nobody else gets them while it waits, unless a job before it in the queue
  // could not run without them: otherwise two gangs that each miss a node would wait for each other for ever. They stay
  // reserved however long it waits, even on a node that never comes back. The caller ends this by adding the job again
  // without them.
  std::map<std::string, std::vector<int>> reserved;
  // Blamed nodes. They are not used as long as the other nodes could hold the job when idle. Otherwise they are used
  // last.
  std::set<std::string> avoided;
  std::set<std::string> refused;  // Nodes that it must not use.
};

// Ranks first_rank + i on devices[i] of one node.
struct Run {
  std::string node;
  int first_rank = 0;
  std::vector<int> devices;
  bool operator==(const Run&) const = default;
};

struct Outcome {
  std::string uid;
  std::vector<Run> runs;  // In rank order. Empty: the job is not placed, and `reason` says why.
  std::string reason;     // UPPER_SNAKE.
  std::string message;    // For people, with counts.
  bool operator==(const Outcome&) const = default;
};

// The promise to the first waiting job: these nodes, by `shadow` if their jobs keep their time limits.
struct Reservation {
  std::string uid;
  std::vector<std::string> nodes;              // In the order of their paths.
  absl::Time shadow = absl::InfiniteFuture();  // Infinite: some job on them has no limit.
  bool operator==(const Reservation&) const = default;
};

struct Misfit {
  std::string reason;   // UPPER_SNAKE, as in Outcome.
  std::string message;  // With counts, and with what would help.
};

}  // namespace titan::scheduler
