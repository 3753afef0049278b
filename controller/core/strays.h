#pragma once

#include <map>
#include <string>

#include "controller/core/stray.h"

namespace titan::core {

// Attempts on nodes that are not the present attempt of a live job, by node. A node without any has no entry: each
// cycle of the scheduler walks through all entries.
class Strays {
 public:
  using OfNode = std::map<AttemptKey, Stray>;

  Stray& add(const std::string& node, const AttemptKey& key) { return by_node_[node][key]; }  // Or finds it.
  bool erase(const std::string& node, const AttemptKey& key);                                 // False: it is not there.
  OfNode take(const std::string& node);  // Removes and returns all of the node.

  Stray* find(const std::string& node, const AttemptKey& key);  // nullptr: it is not there.
  bool contains(const std::string& node, const AttemptKey& key) const { return on(node).contains(key); }
  const OfNode& on(const std::string& node) const;
  int devices_on(const std::string& node) const;
  const std::map<std::string, OfNode>& all() const { return by_node_; }

 private:
  std::map<std::string, OfNode> by_node_;
};

}  // namespace titan::core
