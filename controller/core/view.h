#pragma once

// Jobs and nodes as clients see them.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controller/core/node_table.h"
#include "controller/core/stray.h"
#include "controller/job/record.h"
#include "controller/job/stragglers.h"

namespace titan::core {

struct SlowRank {
  std::string job;  // Full name.
  int rank = 0;
  std::string node;
  job::Stragglers::Slow figures;
};

// One job at one revision. Views share what did not change.
struct JobView {
  std::shared_ptr<const job::JobRecord> record;
  std::vector<std::shared_ptr<const job::AttemptRecord>> attempts;  // Oldest first.
  job::Progress progress;
  std::string pending_reason;  // Why nothing runs. Not stored: it follows from the state of the cluster.
  std::string pending_message;
  std::vector<SlowRank> slow;  // Not stored either.
  int64_t revision = 0;
  bool deleted = false;  // The last view of a deleted job.
};
using JobViewPtr = std::shared_ptr<const JobView>;

struct NodeView {
  Node node;
  int devices_used = 0;
  std::vector<std::string> jobs;
  std::vector<std::pair<AttemptKey, Stray>> unknown;    // Attempts there of jobs that this controller does not know.
  std::vector<std::pair<AttemptKey, LeftBehind>> left;  // Attempts that were given up and may still run there.
  std::vector<SlowRank> slow;                           // Slow ranks there.
  bool is_slow = false;                                 // Two ranks there are slow, or all ranks of a job there.
  std::string refusal;                                  // Why its registration was refused in the last minute.
};

using NodeViewPtr = std::shared_ptr<const NodeView>;

}  // namespace titan::core
