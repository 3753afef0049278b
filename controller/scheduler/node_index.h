#pragma once

// Indexes nodes by free devices and by domain, in natural order.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/scheduler/request.h"

namespace titan::scheduler {

// Returns bytes that compare in natural order: "n2" before "n10". Different texts have different keys.
std::string natural_key(std::string_view text);

// Orders nodes by domain and then by name. Different nodes have different keys.
std::string node_key(std::string_view domain, std::string_view name);

struct NodeInfo;

struct NodeOrder {  // Compares NodeInfo::key.
  bool operator()(const NodeInfo* a, const NodeInfo* b) const;
};
using NodeSet = std::set<NodeInfo*, NodeOrder>;

// Nodes by their free devices and by domain. Domains form a tree: "row2/rack7" is in "row2", which is in the root. An
// update takes time in proportion to the devices that it takes or frees, times the levels, times the logarithm of the
// number of domains. A query takes time in proportion to the devices of one node plus the size of its answer. Neither
// walks the nodes.
class NodeIndex {
 public:
  NodeIndex() = default;
  NodeIndex(const NodeIndex&) = delete;
  NodeIndex& operator=(const NodeIndex&) = delete;

  // Changes the node's free devices in this index from `before` to `after`. 0: the node is not in it.
  void move(NodeInfo& node, int before, int after);

  const Counts& counts() const { return counts_; }

  // Returns a node with at least this many free devices, or null if there is none. With `near`: the smallest domain
  // around `near` that has such a node, and there the tightest fit. Without `near`: the tightest fit of all, from the
  // domain with the fewest such nodes.
  NodeInfo* tightest(int devices, const NodeInfo* near) const;

  // Returns `count` nodes with at least this many devices, or fewer if there are not enough. They are from the deepest
  // domain that has enough, and of several such domains from the one with the fewest such nodes. Inside it they are
  // from few domains and fit tightly. `rest` > 0: prefers a domain that has one more node with `rest` devices.
  std::vector<NodeInfo*> neighbours(int devices, int count, int rest) const;

 private:
  struct Domain;
  using Ranked = std::pair<int, const Domain*>;  // Number of nodes that count, and their domain.
  struct ByCount {
    bool operator()(const Ranked& a, const Ranked& b) const;
  };
  using Ranking = std::set<Ranked, ByCount>;
  using Rankings = std::vector<Ranking>;  // Indexed by devices.
  struct Domain {
    std::string key;
    Domain* parent = nullptr;
    size_t level = 0;              // 0: the root.
    Counts counts;                 // Includes its children's nodes.
    std::vector<NodeSet> by_free;  // Its own nodes, indexed by free devices.
    // Ranked by their nodes with at least this many free devices. Only children of level 2 and deeper.
    Rankings children;
  };

  static void rank(Rankings& rankings, int devices, const Domain& domain, int before, int after);
  const Ranking* children_of(const Domain& domain, int devices) const;
  NodeInfo* tightest_in(const Domain& domain, int devices) const;
  const Domain* smallest_sufficient(const Ranking& ranking, int count, int rest) const;
  void collect(const Domain& domain, int devices, size_t count, std::vector<NodeInfo*>& nodes) const;
  Domain& domain_of(const std::string& path, const NodeInfo& node);

  std::unordered_map<std::string, std::unique_ptr<Domain>> domains_;  // By path. Only domains with nodes.
  Counts counts_;
  // [level][devices]: all domains of a level, ranked by their nodes with at least this many devices.
  std::vector<Rankings> levels_;
  Rankings exactly_;  // [devices]: domains ranked by their own nodes with exactly this many devices.
};

}  // namespace titan::scheduler
