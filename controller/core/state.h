#pragma once

// The whole state of a core. It runs ahead of the store by the changes that are not durable yet.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/core/continuation.h"
#include "controller/core/deletions.h"
#include "controller/core/failed_logs.h"
#include "controller/core/folders.h"
#include "controller/core/jobs.h"
#include "controller/core/left_behind.h"
#include "controller/core/node_table.h"
#include "controller/core/options.h"
#include "controller/core/queue.h"
#include "controller/core/refusals.h"
#include "controller/core/requests.h"
#include "controller/core/spools.h"
#include "controller/core/strays.h"
#include "controller/core/timing.h"

namespace titan::core {

struct State {
  explicit State(const CoreOptions& options) : nodes(options.lease, options.beat), pauses(options.lease) {}

  Expected expected;

  Jobs jobs;
  NodeTable nodes;
  PlacedJobs placed;
  Folders folders;
  Deletions deletions;
  Requests requests;
  Spools spools;
  Strays strays;
  LeftRanks left;
  RefusedWorkers refused_workers;
  SchedulingQueue queue;
  KeptLogs kept_logs;
  Cycles cycles;
  Pauses pauses;
  Periodic deletion_by_age{absl::Minutes(1)};
  Periodic explanation{absl::Seconds(5)};  // For explain_waits().
  Periodic estimate{absl::Seconds(5)};     // For estimate_ends().
};

}  // namespace titan::core
