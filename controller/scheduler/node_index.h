#pragma once

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/scheduler/request.h"

namespace titan::scheduler {

struct NodeState;

struct NodeOrder {  // By NodeState::key.
  bool operator()(const NodeState* a, const NodeState* b) const;
};
using NodeSet = std::set<NodeState*, NodeOrder>;

// Nodes by their free devices and by domain. A change costs the devices that it takes or frees times the logarithm of
// the domains, a question the devices of one node and what it answers: neither walks the nodes.
class NodeIndex {
 public:
  NodeIndex() = default;
  NodeIndex(const NodeIndex&) = delete;
  NodeIndex& operator=(const NodeIndex&) = delete;

  // The node had `before` free devices here and has `after`; 0: it is not here.
  void move(NodeState& node, int before, int after);

  const Counts& counts() const { return counts_; }

  // The node with the fewest free devices of those with at least so many; first one in `near`'s domain if that has any,
  // else from the domain with the fewest such nodes. Null: there is none.
  NodeState* tightest(int devices, const NodeState* near) const;

  // Up to `count` nodes of one domain with at least so many devices, the tightest first: from the domain with the
  // fewest that has enough, or as many as one has. `rest` > 0: a domain that has one more node with `rest` devices is
  // preferred. Empty: there is none.
  std::vector<NodeState*> neighbours(int devices, int count, int rest) const;

 private:
  struct Domain {
    std::string key;
    Counts counts;
    std::vector<NodeSet> by_free;
  };
  using Ranked = std::pair<int, const Domain*>;  // Nodes that count, and where.
  struct ByCount {
    bool operator()(const Ranked& a, const Ranked& b) const {
      if (a.first != b.first) return a.first < b.first;
      if (a.second == nullptr || b.second == nullptr) return a.second == nullptr && b.second != nullptr;  // Before all.
      return a.second->key < b.second->key;
    }
  };
  using Ranking = std::set<Ranked, ByCount>;

  static void rank(std::vector<Ranking>& rankings, int devices, const Domain& domain, int before, int after);
  static NodeState* tightest_in(const Domain& domain, int devices);
  const Domain* roomy_domain(int devices, int count, int rest) const;
  Domain& domain_of(const NodeState& node);

  std::unordered_map<std::string, std::unique_ptr<Domain>> domains_;
  Counts counts_;
  std::vector<Ranking> at_least_;  // [devices]: domains by their nodes with so many free devices or more.
  std::vector<Ranking> exactly_;   // [devices]: domains by their nodes with exactly so many.
};

}  // namespace titan::scheduler
