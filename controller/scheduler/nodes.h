#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/scheduler/node_index.h"
#include "controller/scheduler/node_state.h"
#include "controller/scheduler/request.h"

namespace titan::scheduler {

// Nodes of one kind of device, counted and indexed. Those that were promised to the first waiting job (targeted) are
// kept apart from the open ones.
class Nodes {
 public:
  explicit Nodes(std::string device) : device_(std::move(device)) {}
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  void attach(NodeState& node);
  void detach(NodeState& node);

  // After anything about the node changed. True when it has more to offer than before, to anybody. Nodes of other kinds
  // are let alone.
  bool refresh(NodeState& node);

  void hide(NodeState& node, bool hidden);
  void target(NodeState& node, bool targeted);
  // While merged, targeted nodes are among the open ones in the index (but not in unclaimed()). Costs the nodes given.
  void merge(const NodeSet& targeted, bool merged);

  NodeIndex& index(bool targeted) { return targeted ? target_ : open_; }
  const NodeIndex& index(bool targeted) const { return targeted ? target_ : open_; }
  // Usable nodes by devices that no owner has; hidden ones too.
  const Counts& unclaimed(bool targeted) const { return targeted ? target_unclaimed_ : open_unclaimed_; }
  const Counts& usable() const { return usable_; }          // By all their devices.
  const Counts& known() const { return known_; }            // The same of all nodes, ready or not.
  const Counts& in_service() const { return in_service_; }  // Those of them that are not cordoned.

  // The nodes that a request would get first if it waited for them: the ones whose claims end first, then the emptiest.
  // Empty when all usable nodes but those in `without` are too few.
  NodeSet soonest(const Request& request, const std::set<const NodeState*>& without) const;
  // Of the targeted nodes whose claims keep them from taking their whole share, the one whose claims end last; null:
  // none.
  NodeState* slowest(const Request& request) const;
  absl::Time targets_drained() const;  // When the last claim on a targeted node ends.

 private:
  struct Draining {
    absl::Time drained;
    int unclaimed;
    NodeState* node;
    bool operator<(const Draining& other) const {
      if (drained != other.drained) return drained < other.drained;
      return unclaimed != other.unclaimed ? unclaimed > other.unclaimed : node->key < other.node->key;
    }
  };

  NodeState::Standing judge(NodeState& node);

  const std::string device_;
  NodeIndex open_, target_;
  Counts open_unclaimed_, target_unclaimed_, usable_, known_, in_service_;
  std::map<int, std::set<Draining>> draining_;  // Usable nodes by all their devices.
  std::set<Draining> target_draining_;
  bool merged_ = false;
  std::vector<char> taken_;  // Scratch of judge.
};

// Devices of the node that the job would take, best first: its own, then free ones, then what lifted jobs hold.
std::vector<int> choose_devices(const NodeState& node, const Waiting& job, int count);

// Neither claimed nor held, ascending.
std::vector<int> free_devices(const NodeState& node);

}  // namespace titan::scheduler
