#pragma once

// The scheduler's state of one node, and the ledger of device owners.

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
  absl::Time ends = absl::InfiniteFuture();  // When its owner is expected to release them.
};

struct Hold {  // Devices on a node that are reserved for a waiting job.
  const Waiting* job = nullptr;
  const std::vector<int>* devices = nullptr;
};

// A node with the claims and holds on its devices.
struct NodeInfo {
  NodeProperties node;
  std::string key;                      // Sort key (node_key).
  std::string domain_key;               // Sort key of its domain.
  bool known = false;                   // False: only mentioned by a claim or a waiting job.
  int mentions = 0;                     // Number of waiting jobs that hold, avoid or refuse it.
  std::map<std::string, Claim> claims;  // By owner. Two owners may claim one device. It is free once neither does.
  std::vector<Hold> holds;

  bool hidden = false;    // Not in the index while one job is being placed.
  bool targeted = false;  // Promised to the first waiting job.

  // The values with which Nodes has counted the node.
  struct Standing {
    bool usable = false;  // Known, ready and not cordoned.
    bool targeted = false;
    NodeIndex* index = nullptr;
    int devices = 0;
    int free = 0;                               // Neither claimed nor held.
    int unclaimed = 0;                          // Free or held.
    absl::Time drained = absl::InfinitePast();  // End of the last claim.
    bool operator==(const Standing&) const = default;
  } standing;
};

// All nodes that are known or mentioned, and the owners' claims. Claims may arrive before their node does and stay when
// it goes, so the order of events does not matter.
class Ledger {
 public:
  NodeInfo& at(const std::string& name);
  NodeInfo* find(const std::string& name);
  const NodeInfo* find(const std::string& name) const;
  // Adds the devices to the owner's claim there. `ends` becomes the end of the whole claim.
  NodeInfo& claim(const std::string& owner, const std::string& node, const std::vector<int>& devices, absl::Time ends);
  // Remove the owner's claims, everywhere or on one node. Return the nodes on which it had any.
  std::vector<NodeInfo*> release(const std::string& owner);
  std::vector<NodeInfo*> release(const std::string& owner, const std::string& node);
  // Does nothing while the node is known, claimed or mentioned.
  void forget_if_unused(const NodeInfo& node);

 private:
  std::unordered_map<std::string, std::unique_ptr<NodeInfo>> nodes_;
  std::unordered_map<std::string, std::map<std::string, NodeInfo*>> owners_;  // Claimed nodes by name, for each owner.
};

}  // namespace titan::scheduler
