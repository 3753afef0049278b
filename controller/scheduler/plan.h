#pragma once

// Who runs where, from scratch: a pure function from the waiting jobs and the nodes to placements. All ranks of a job
// or none. Scheduler (scheduler.h) keeps its state instead, and knows devices and topology.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/job/record.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

struct NodeView {
  std::string name;
  std::string device;
  int devices = 0;  // Ranks that fit when nothing runs.
  int free = 0;     // Without ranks; a recovering job may have it reserved.
  bool ready = true;
  bool cordoned = false;
};

struct JobView {
  std::string uid;
  std::string name;
  std::string device;
  int ranks = 1;
  int ranks_per_node = 0;  // 0: as few nodes as possible.
  int priority = 0;
  int64_t order = 0;        // Creation order.
  bool recovering = false;  // First in line: its surviving nodes wait for it.
  // Devices per node that a recovering job came from and keeps. Granted in the order of consideration as far as they
  // are free; a recovering job that comes earlier may take them, or two gangs that each miss a node would wait for each
  // other for ever.
  std::map<std::string, int> reserved;
  // Nodes that failed this job. Not used as long as the others, were they idle, could hold it.
  std::set<std::string> avoided;
};

struct Decision {
  std::string uid;
  std::vector<job::Placement> placements;  // Empty: not now, and `reason` says why.
  std::string reason;                      // UPPER_SNAKE.
  std::string message;                     // With counts, for people.
};

// One decision for every job, in the order in which they were considered: recovering ones, then by priority, then by
// age.
//
// A job that cannot run now although the cluster is large enough keeps the free devices of the nodes that it waits for:
// later jobs may only use other nodes. So a large job is never starved by small ones, and at most one job at a time
// collects devices on a node.
std::vector<Decision> plan(std::vector<JobView> jobs, std::vector<NodeView> nodes);

// Why the job could never run on these nodes, were all of them ready, idle and not cordoned; nothing when it could.
std::optional<Misfit> misfit(const JobView& job, const std::vector<NodeView>& nodes);

}  // namespace titan::scheduler
