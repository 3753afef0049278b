#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/scheduler/node_index.h"
#include "controller/scheduler/node_info.h"
#include "controller/scheduler/request.h"

namespace titan::scheduler {

// Nodes of one kind of device, counted and indexed. Nodes that are promised to the first waiting job (targeted) are
// kept apart from the open ones.
class Nodes {
 public:
  explicit Nodes(std::string device) : device_(std::move(device)) {}
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  // Begin and end to count a known node. Call refresh() after attach().
  void attach(NodeInfo& node);
  void detach(NodeInfo& node);

  // Call it after any change of the node. True: it offers more than before to some job. Ignores nodes of other kinds.
  bool refresh(NodeInfo& node);

  // A hidden node is in no index.
  void hide(NodeInfo& node, bool hidden);
  // Moves the node between the open and the promised ones.
  void target(NodeInfo& node, bool targeted);
  // While merged, targeted nodes are among the open ones in the index, but not in unclaimed(). Takes time in proportion
  // to the given nodes.
  void merge(const NodeSet& targeted, bool merged);

  NodeIndex& index(bool targeted) { return targeted ? target_ : open_; }
  const NodeIndex& index(bool targeted) const { return targeted ? target_ : open_; }
  // Usable nodes by their devices without an owner. Includes hidden nodes.
  const Counts& unclaimed(bool targeted) const { return targeted ? target_unclaimed_ : open_unclaimed_; }
  const Counts& usable() const { return usable_; }          // Usable nodes by all their devices.
  const Counts& known() const { return known_; }            // All known nodes, ready or not, by all their devices.
  const Counts& in_service() const { return in_service_; }  // Known nodes that are not cordoned.

  // Returns the nodes that a request would get first if it waited for them: those whose claims end first, then the
  // emptiest. Empty if all usable nodes except `without` are too few.
  NodeSet soonest(const GangRequest& request, const std::set<const NodeInfo*>& without) const;
  // Returns the targeted node whose claims end last, among those that cannot give their whole share yet. Null: none.
  NodeInfo* slowest(const GangRequest& request) const;
  absl::Time targets_drained() const;  // Returns when the last claim on a targeted node ends.

 private:
  struct Draining {
    absl::Time drained;
    int unclaimed;
    NodeInfo* node;
    bool operator<(const Draining& other) const {
      if (drained != other.drained) return drained < other.drained;
      return unclaimed != other.unclaimed ? unclaimed > other.unclaimed : node->key < other.node->key;
    }
  };

  NodeInfo::Standing judge(NodeInfo& node);

  const std::string device_;
  NodeIndex open_, target_;
  Counts open_unclaimed_, target_unclaimed_, usable_, known_, in_service_;
  std::map<int, std::set<Draining>> draining_;  // Usable nodes by all their devices.
  std::set<Draining> target_draining_;
  bool merged_ = false;
  std::vector<char> taken_;  // Scratch space of judge().
};

// Returns up to `count` devices of the node that the job would take, ascending. It takes its own first, then free ones,
// then those that lifted jobs hold.
std::vector<int> choose_devices(const NodeInfo& node, const Waiting& job, int count);

// Returns the devices that are neither claimed nor held, ascending.
std::vector<int> free_devices(const NodeInfo& node);

}  // namespace titan::scheduler
