#pragma once

// One node as the scheduler keeps it, and the ledger of who has which of its devices.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "controller/scheduler/node_index.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

struct Waiting;

struct Claim {
  std::vector<int> devices;
  absl::Time ends = absl::InfiniteFuture();  // When its owner is expected to give them back.
};

struct Hold {  // Devices that a waiting job came from.
  const Waiting* job = nullptr;
  const std::vector<int>* devices = nullptr;
};

struct NodeState {
  Node node;
  std::string key;                      // Order of nodes (node_key).
  std::string domain_key;               // Order of domains.
  bool known = false;                   // False: only spoken of, by a claim or by a waiting job.
  int mentions = 0;                     // Waiting jobs that hold, avoid or refuse it.
  std::map<std::string, Claim> claims;  // By owner. Two owners may claim one device; it is free once neither does.
  std::vector<Hold> holds;

  bool hidden = false;    // From the index, while one job is placed.
  bool targeted = false;  // Part of what the first waiting job was promised.

  // As counted by Nodes.
  struct Standing {
    bool usable = false;  // Known, ready and not cordoned.
    bool targeted = false;
    NodeIndex* index = nullptr;
    int devices = 0;
    int free = 0;                               // Neither claimed nor held.
    int unclaimed = 0;                          // Free or held.
    absl::Time drained = absl::InfinitePast();  // When the last claim ends.
    bool operator==(const Standing&) const = default;
  } standing;
};

// All nodes that anybody spoke of, and which owner has claims where. Claims may come before their node does and stay
// when it goes, so the order of events does not matter.
class Ledger {
 public:
  NodeState& at(const std::string& name);
  NodeState* find(const std::string& name);
  const NodeState* find(const std::string& name) const;
  // Adds the devices to what the owner has there. `ends` is the new end of all of them.
  NodeState& claim(const std::string& owner, const std::string& node, const std::vector<int>& devices, absl::Time ends);
  // The owner's nodes, or the named one if it is among them, after the claims are gone.
  std::vector<NodeState*> release(const std::string& owner);
  std::vector<NodeState*> release(const std::string& owner, const std::string& node);
  void forget_if_unused(const NodeState& node);

 private:
  std::unordered_map<std::string, std::unique_ptr<NodeState>> nodes_;
  std::unordered_map<std::string, std::map<std::string, NodeState*>> owners_;  // To nodes by name.
};

}  // namespace titan::scheduler
