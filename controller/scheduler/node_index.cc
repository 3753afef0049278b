#include "controller/scheduler/node_index.h"

#include <algorithm>

#include "controller/scheduler/node_info.h"

namespace titan::scheduler {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// Each number becomes its length and then its digits, so that shorter numbers come first.
std::string natural_key(std::string_view text) {
  std::string key;
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      key.push_back(text[i++]);
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    while (i + 1 < end && text[i] == '0') ++i;
    key.push_back(static_cast<char>(std::min<size_t>(end - i, 255)));
    key.append(text.substr(i, end - i));
    i = end;
  }
  key.push_back('\0');
  return key.append(text);  // Distinguishes "n1" and "n01", which have the same number.
}

std::string node_key(std::string_view domain, std::string_view name) {
  return natural_key(domain) + '\0' + natural_key(name);
}

namespace {

// Domains to try for one that also holds a gang's last, partly used node.
constexpr int kDomainsTried = 16;

// "row2/rack7" -> "row2" -> "".
std::string parent_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

bool NodeOrder::operator()(const NodeInfo* a, const NodeInfo* b) const { return a->key < b->key; }

bool NodeIndex::ByCount::operator()(const Ranked& a, const Ranked& b) const {
  if (a.first != b.first) return a.first < b.first;
  // Null sorts first.
  if (a.second == nullptr || b.second == nullptr) return a.second == nullptr && b.second != nullptr;
  return a.second->key < b.second->key;
}

NodeIndex::Domain& NodeIndex::domain_of(const std::string& path, const NodeInfo& node) {
  const auto it = domains_.find(path);
  if (it != domains_.end()) return *it->second;
  auto domain = std::make_unique<Domain>();
  domain->key = path == node.node.domain ? node.domain_key : natural_key(path);
  if (!path.empty()) {
    domain->parent = &domain_of(parent_path(path), node);
    domain->level = domain->parent->level + 1;
  }
  if (domain->level >= levels_.size()) levels_.resize(domain->level + 1);
  return *(domains_[path] = std::move(domain));
}

void NodeIndex::rank(Rankings& rankings, int devices, const Domain& domain, int before, int after) {
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

void NodeIndex::move(NodeInfo& node, int before, int after) {
  if (before == after) return;
  Domain& own = domain_of(node.node.domain, node);
  if (static_cast<int>(own.by_free.size()) <= std::max(before, after)) own.by_free.resize(std::max(before, after) + 1);
  for (const auto& [devices, change] : {std::pair(before, -1), std::pair(after, 1)}) {
    if (devices == 0) continue;
    NodeSet& nodes = own.by_free[devices];
    const int size = static_cast<int>(nodes.size());
    rank(exactly_, devices, own, size, size + change);
    if (change > 0) {
      nodes.insert(&node);
    } else {
      nodes.erase(&node);
    }
    counts_.add(devices, change);
  }
  const int sign = after > before ? 1 : -1;
  for (Domain* domain = &own; domain != nullptr; domain = domain->parent) {
    for (int devices = std::min(before, after) + 1; devices <= std::max(before, after) && domain->level > 0;
         ++devices) {
      const int nodes = domain->counts.at_least(devices);
      rank(levels_[domain->level], devices, *domain, nodes, nodes + sign);
      if (domain->level > 1) rank(domain->parent->children, devices, *domain, nodes, nodes + sign);
    }
    if (before > 0) domain->counts.add(before, -1);
    if (after > 0) domain->counts.add(after, 1);
  }
  std::string path = node.node.domain;
  for (Domain* domain = &own; domain != nullptr && domain->counts.at_least(1) == 0; path = parent_path(path)) {
    domain = domain->parent;
    domains_.erase(path);
  }
}

// Returns the domain's children with a node that has this many devices. Null: there are no such children. The root's
// children are all domains of level 1.
const NodeIndex::Ranking* NodeIndex::children_of(const Domain& domain, int devices) const {
  if (domain.level == 0 && levels_.size() < 2) return nullptr;
  const Rankings& rankings = domain.level == 0 ? levels_[1] : domain.children;
  if (devices >= static_cast<int>(rankings.size()) || rankings[devices].empty()) return nullptr;
  return &rankings[devices];
}

NodeInfo* NodeIndex::tightest_in(const Domain& domain, int devices) const {
  for (size_t free = devices; free < domain.by_free.size(); ++free) {
    if (!domain.by_free[free].empty()) return *domain.by_free[free].begin();
  }
  const Ranking* children = children_of(domain, devices);
  return children == nullptr ? nullptr : tightest_in(*children->begin()->second, devices);
}

NodeInfo* NodeIndex::tightest(int devices, const NodeInfo* near) const {
  if (counts_.at_least(devices) == 0) return nullptr;
  for (std::string path = near == nullptr ? "" : near->node.domain; !path.empty(); path = parent_path(path)) {
    const auto domain = domains_.find(path);
    NodeInfo* node = domain == domains_.end() ? nullptr : tightest_in(*domain->second, devices);
    if (node != nullptr) return node;
  }
  for (size_t free = devices; free < exactly_.size(); ++free) {
    if (!exactly_[free].empty()) return *exactly_[free].begin()->second->by_free[free].begin();
  }
  return nullptr;
}

// Returns the domain with the fewest nodes that suffice. Null: none has enough.
const NodeIndex::Domain* NodeIndex::smallest_sufficient(const Ranking& ranking, int count, int rest) const {
  const auto enough = ranking.lower_bound({count, nullptr});
  if (enough == ranking.end()) return nullptr;
  if (rest == 0) return enough->second;
  int tried = 0;
  for (auto it = enough; it != ranking.end() && tried < kDomainsTried; ++it, ++tried) {
    if (it->second->counts.at_least(rest) > count) return it->second;
  }
  const Domain* largest = ranking.rbegin()->second;
  return largest->counts.at_least(rest) > count ? largest : enough->second;
}

// Takes whole children, the largest first, and for the rest the smallest child that holds it. If the children have too
// few nodes, adds the domain's own.
void NodeIndex::collect(const Domain& domain, int devices, size_t count, std::vector<NodeInfo*>& nodes) const {
  const size_t wanted = nodes.size() + count;
  const auto left = [&] { return static_cast<int>(wanted - nodes.size()); };
  if (const Ranking* children = children_of(domain, devices)) {
    for (auto next = children->rbegin(); next != children->rend() && left() > 0; ++next) {
      if (next->first < left()) {
        collect(*next->second, devices, next->first, nodes);
        continue;
      }
      collect(*children->lower_bound({left(), nullptr})->second, devices, left(), nodes);
    }
  }
  for (size_t free = devices; free < domain.by_free.size(); ++free) {
    for (NodeInfo* node : domain.by_free[free]) {
      if (left() == 0) return;
      nodes.push_back(node);
    }
  }
}

std::vector<NodeInfo*> NodeIndex::neighbours(int devices, int count, int rest) const {
  std::vector<NodeInfo*> nodes;
  if (counts_.at_least(devices) == 0) return nodes;
  const Domain* domain = nullptr;
  for (size_t level = levels_.size(); domain == nullptr && level-- > 1;) {
    if (devices < static_cast<int>(levels_[level].size()))
      domain = smallest_sufficient(levels_[level][devices], count, rest);
  }
  collect(domain == nullptr ? *domains_.at("") : *domain, devices, count, nodes);
  return nodes;
}

}  // namespace titan::scheduler
