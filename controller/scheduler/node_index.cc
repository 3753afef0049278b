#include "controller/scheduler/node_index.h"

#include <algorithm>

#include "controller/scheduler/node_state.h"

namespace titan::scheduler {
namespace {

// Domains that are looked at for one that holds a gang's last, partly used node too.
constexpr int kDomainsTried = 16;

}  // namespace

bool NodeOrder::operator()(const NodeState* a, const NodeState* b) const { return a->key < b->key; }

NodeIndex::Domain& NodeIndex::domain_of(const NodeState& node) {
  std::unique_ptr<Domain>& domain = domains_[node.node.domain];
  if (domain == nullptr) domain = std::make_unique<Domain>(Domain{node.domain_key, {}, {}});
  return *domain;
}

void NodeIndex::rank(std::vector<Ranking>& rankings, int devices, const Domain& domain, int before, int after) {
  if (devices >= static_cast<int>(rankings.size())) rankings.resize(devices + 1);
  Ranking& ranking = rankings[devices];
  if (before == 0) {
    ranking.emplace(after, &domain);
    return;
  }
  Ranking::node_type entry = ranking.extract({before, &domain});
  if (after == 0) return;
  entry.value().first = after;
  ranking.insert(std::move(entry));
}

void NodeIndex::move(NodeState& node, int before, int after) {
  if (before == after) return;
  Domain& domain = domain_of(node);
  if (static_cast<int>(domain.by_free.size()) <= std::max(before, after)) {
    domain.by_free.resize(std::max(before, after) + 1);
  }
  const int sign = after > before ? 1 : -1;
  for (int devices = std::min(before, after) + 1; devices <= std::max(before, after); ++devices) {
    const int nodes = domain.counts.at_least(devices);
    rank(at_least_, devices, domain, nodes, nodes + sign);
  }
  for (const auto& [devices, change] : {std::pair(before, -1), std::pair(after, 1)}) {
    if (devices == 0) continue;
    NodeSet& nodes = domain.by_free[devices];
    const int size = static_cast<int>(nodes.size());
    rank(exactly_, devices, domain, size, size + change);
    if (change > 0) {
      nodes.insert(&node);
    } else {
      nodes.erase(&node);
    }
    domain.counts.add(devices, change);
    counts_.add(devices, change);
  }
  if (domain.counts.at_least(1) == 0) domains_.erase(node.node.domain);
}

NodeState* NodeIndex::tightest_in(const Domain& domain, int devices) {
  for (size_t free = devices; free < domain.by_free.size(); ++free) {
    if (!domain.by_free[free].empty()) return *domain.by_free[free].begin();
  }
  return nullptr;
}

NodeState* NodeIndex::tightest(int devices, const NodeState* near) const {
  if (counts_.at_least(devices) == 0) return nullptr;
  if (near != nullptr) {
    const auto domain = domains_.find(near->node.domain);
    NodeState* node = domain == domains_.end() ? nullptr : tightest_in(*domain->second, devices);
    if (node != nullptr) return node;
  }
  for (size_t free = devices; free < exactly_.size(); ++free) {
    if (!exactly_[free].empty()) return *exactly_[free].begin()->second->by_free[free].begin();
  }
  return nullptr;
}

const NodeIndex::Domain* NodeIndex::roomy_domain(int devices, int count, int rest) const {
  const Ranking& ranking = at_least_[devices];
  const auto enough = ranking.lower_bound({count, nullptr});
  if (enough == ranking.end()) return ranking.rbegin()->second;
  if (rest == 0) return enough->second;
  int tried = 0;
  for (auto it = enough; it != ranking.end() && tried < kDomainsTried; ++it, ++tried) {
    if (it->second->counts.at_least(rest) > count) return it->second;
  }
  const Domain* largest = ranking.rbegin()->second;
  return largest->counts.at_least(rest) > count ? largest : enough->second;
}

std::vector<NodeState*> NodeIndex::neighbours(int devices, int count, int rest) const {
  std::vector<NodeState*> chosen;
  if (counts_.at_least(devices) == 0) return chosen;
  const Domain& domain = *roomy_domain(devices, count, rest);
  for (size_t free = devices; free < domain.by_free.size(); ++free) {
    for (NodeState* node : domain.by_free[free]) {
      if (static_cast<int>(chosen.size()) == count) return chosen;
      chosen.push_back(node);
    }
  }
  return chosen;
}

}  // namespace titan::scheduler
