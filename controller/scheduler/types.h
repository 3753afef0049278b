#pragma once

// What the scheduler is told and what it answers.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace titan::scheduler {

// In messages for who may not see that job.
inline constexpr char kForeignJob[] = "a job of another project";

struct Node {
  std::string name;
  std::string device;  // Kind: "cuda", "cpu".
  int devices = 0;     // Numbered from 0; each takes one rank.
  // Where it stands, as a path: "row2/rack7". Nodes with one path are near each other and so are neighbours in the
  // order of paths. Empty everywhere: one domain.
  std::string domain;
  bool ready = true;
  bool cordoned = false;
  bool unusable = false;  // Its worker speaks, and can prepare no rank.
  bool operator==(const Node&) const = default;
};

// A job that waits for devices.
struct Job {
  std::string uid;
  std::string name;  // In messages.
  std::string device;
  int ranks = 1;
  int ranks_per_node = 0;  // 0: as few nodes as possible. Otherwise it overrules `unit`.
  // Ranks [k * unit, (k + 1) * unit) share a node: the tensor degree, whose axis is the innermost of the mesh.
  int unit = 1;
  int priority = 0;
  int64_t order = 0;        // Order of submission.
  bool recovering = false;  // First in line: its surviving nodes wait for it.
  // How long it runs at most; it is ended then. Backfill needs it.
  absl::Duration time_limit = absl::InfiniteDuration();
  // Devices by node that the job came from. Nobody else gets them while it waits, unless a job before it in the queue
  // could not run without them: two gangs that each miss a node would otherwise wait for each other for ever. They are
  // kept however long it waits, also for a node that never comes back: when to give up is the caller's to say, by
  // adding the job anew without them.
  std::map<std::string, std::vector<int>> reserved;
  // Nodes that were blamed. Left alone as long as the others, were they idle, could hold the job; used last if not.
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
  std::vector<Run> runs;  // In rank order. Empty: not now, and `reason` says why.
  std::string reason;     // UPPER_SNAKE.
  std::string message;    // With counts, for people.
  bool operator==(const Outcome&) const = default;
};

// What the first job that waits has been promised: these nodes, by `shadow` if their jobs keep their time limits.
struct Reservation {
  std::string uid;
  std::vector<std::string> nodes;              // In the order of their paths.
  absl::Time shadow = absl::InfiniteFuture();  // Infinite: some job on them has no limit.
  bool operator==(const Reservation&) const = default;
};

struct Misfit {
  std::string reason;   // UPPER_SNAKE, as in Outcome.
  std::string message;  // With counts and what would help.
};

}  // namespace titan::scheduler
