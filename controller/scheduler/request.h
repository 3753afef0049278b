#pragma once

#include <cstdint>
#include <vector>

#include "controller/scheduler/types.h"

namespace titan::scheduler {

// How a gang may be divided among nodes.
struct GangRequest {
  int ranks = 1;
  int per_node = 0;  // Exactly this many ranks per node. 0: any multiple of `unit`.
  int unit = 1;

  static GangRequest of(const PendingJob& job) { return {job.ranks, job.ranks_per_node, job.unit > 1 ? job.unit : 1}; }

  // Returns the devices that a node must offer to be useful.
  int least() const { return per_node > 0 ? per_node : unit; }
  // Returns the ranks that a node with this many devices takes.
  int share(int devices) const {
    if (per_node > 0) return devices >= per_node ? per_node : 0;
    return devices / unit * unit;
  }
  bool divides() const { return ranks > 0 && ranks % least() == 0; }
};

// Numbers of nodes by their devices. Updates and queries take time in proportion to the devices of one node, whatever
// the number of nodes.
class Counts {
 public:
  void add(int devices, int nodes) {
    if (devices >= static_cast<int>(at_least_.size())) at_least_.resize(devices + 1);
    for (int d = 0; d <= devices; ++d) at_least_[d] += nodes;
    devices_ += int64_t{devices} * nodes;
  }
  // Returns the number of nodes with this many devices or more. at_least(0) counts all nodes.
  int at_least(int devices) const { return devices < static_cast<int>(at_least_.size()) ? at_least_[devices] : 0; }
  int64_t devices() const { return devices_; }
  // Returns the devices of the largest node, 0 without nodes.
  int widest() const {
    int widest = static_cast<int>(at_least_.size()) - 1;
    while (widest > 0 && at_least_[widest] == 0) --widest;
    return widest < 0 ? 0 : widest;
  }
  // Returns the ranks that all nodes together take.
  int64_t capacity(const GangRequest& request) const {
    if (request.per_node > 0) return int64_t{at_least(request.per_node)} * request.per_node;
    int64_t units = 0;
    for (int d = request.unit; d < static_cast<int>(at_least_.size()); d += request.unit) units += at_least_[d];
    return units * request.unit;
  }

 private:
  std::vector<int> at_least_;
  int64_t devices_ = 0;
};

}  // namespace titan::scheduler
