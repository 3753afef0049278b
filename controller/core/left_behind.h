#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "controller/core/stray.h"

namespace titan::core {

// Ranks that were given up while their node was silent, by node, and the jobs that cannot end because of them. A node
// without such ranks has no entry.
class LeftRanks {
 public:
  using OfNode = std::map<AttemptKey, LeftBehind>;

  void add(const std::string& node, const AttemptKey& key, LeftBehind left) { by_node_[node][key] = std::move(left); }
  bool erase(const std::string& node, const AttemptKey& key);  // False: there was no such entry.
  void drop(const std::string& node) { by_node_.erase(node); }
  // Brings the time by which the node's ranks have ended forward to `until`, if it is later. False: the node has no
  // such ranks.
  bool bound(const std::string& node, absl::Duration until, absl::Time until_wall);

  const OfNode& on(const std::string& node) const;
  const std::map<std::string, OfNode>& all() const { return by_node_; }
  // True if ranks of the attempt may still train, on the node or on any node.
  bool may_train(const std::string& node, const AttemptKey& key) const;
  bool may_train(const AttemptKey& key) const;
  // Returns the entries whose ranks have ended by now.
  std::vector<std::pair<std::string, AttemptKey>> over(absl::Duration now) const;

  // Jobs without an attempt that end once nothing of their newest attempt is left behind.
  bool add_job(const std::string& uid) { return leaving_.insert(uid).second; }  // False: it was added before.
  void erase_job(const std::string& uid) { leaving_.erase(uid); }
  bool is_leaving(const std::string& uid) const { return leaving_.contains(uid); }
  const std::set<std::string>& jobs() const { return leaving_; }

 private:
  std::map<std::string, OfNode> by_node_;
  std::set<std::string> leaving_;
};

}  // namespace titan::core
