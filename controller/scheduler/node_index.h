#pragma once

// Indexes nodes by free devices and by domain, in the order in which people count.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/scheduler/request.h"

namespace titan::scheduler {

// Bytes that compare as people count: "n2" before "n10". Different for different texts.
std::string natural_key(std::string_view text);

// Orders nodes by where they stand and then by name; different for different nodes.
std::string node_key(std::string_view domain, std::string_view name);

struct NodeState;

struct NodeOrder {  // By NodeState::key.
  bool operator()(const NodeState* a, const NodeState* b) const;
};
using NodeSet = std::set<NodeState*, NodeOrder>;

// Nodes by their free devices and by domain. Domains form a tree: "row2/rack7" is in "row2", which is in the root. A
// change costs the devices that it takes or frees times the levels and the logarithm of the domains, a question the
// devices of one node and what it answers: neither walks the nodes.
class NodeIndex {
 public:
  NodeIndex() = default;
  NodeIndex(const NodeIndex&) = delete;
  NodeIndex& operator=(const NodeIndex&) = delete;

  // The node had `before` free devices here and has `after`; 0: it is not here.
  void move(NodeState& node, int before, int after);

  const Counts& counts() const { return counts_; }

  // A node with at least so many free devices: in the smallest domain around `near` that has one, the tightest fit in
  // its own; without `near`, the tightest of all, from the domain with the fewest such nodes. Null: there is none.
  NodeState* tightest(int devices, const NodeState* near) const;

  // `count` nodes with at least so many devices, or all there are: of the deepest domain that has enough, the one with
  // the fewest; in it from the fewest domains, and the tightest of theirs. `rest` > 0: a domain that has one more node
  // with `rest` devices is preferred.
  std::vector<NodeState*> neighbours(int devices, int count, int rest) const;

 private:
  struct Domain;
  using Ranked = std::pair<int, const Domain*>;  // Nodes that count, and where.
  struct ByCount {
    bool operator()(const Ranked& a, const Ranked& b) const;
  };
  using Ranking = std::set<Ranked, ByCount>;
  using Rankings = std::vector<Ranking>;  // [devices]
  struct Domain {
    std::string key;
    Domain* parent = nullptr;
    size_t level = 0;              // 0: the root.
    Counts counts;                 // With its children's.
    std::vector<NodeSet> by_free;  // [devices]; its own.
    Rankings children;             // By nodes with so many free devices or more; of level 2 and deeper.
  };

  static void rank(Rankings& rankings, int devices, const Domain& domain, int before, int after);
  const Ranking* children_of(const Domain& domain, int devices) const;
  NodeState* tightest_in(const Domain& domain, int devices) const;
  const Domain* roomy(const Ranking& ranking, int count, int rest) const;
  void collect(const Domain& domain, int devices, size_t count, std::vector<NodeState*>& nodes) const;
  Domain& domain_of(const std::string& path, const NodeState& node);

  std::unordered_map<std::string, std::unique_ptr<Domain>> domains_;  // By path; those with nodes.
  Counts counts_;
  std::vector<Rankings> levels_;  // [level][devices]: all domains of a level, by nodes with so many devices or more.
  Rankings exactly_;              // [devices]: domains by their own nodes with exactly so many.
};

}  // namespace titan::scheduler
