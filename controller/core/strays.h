#pragma once

#include <map>
#include <string>

#include "controller/core/stray.h"

namespace titan::core {

// The strays of all nodes, by node. A node without any has no entry: each scheduling cycle walks through all entries.
class Strays {
 public:
  using OfNode = std::map<AttemptKey, Stray>;

  Stray& add(const std::string& node, const AttemptKey& key) { return by_node_[node][key]; }  // Adds it, or finds it.
  bool erase(const std::string& node, const AttemptKey& key);  // False: there was no such entry.
  OfNode take(const std::string& node);                        // Removes and returns all strays of the node.

  Stray* find(const std::string& node, const AttemptKey& key);  // nullptr: there is no such entry.
  bool contains(const std::string& node, const AttemptKey& key) const { return on(node).contains(key); }
  const OfNode& on(const std::string& node) const;
  int devices_on(const std::string& node) const;
  const std::map<std::string, OfNode>& all() const { return by_node_; }

 private:
  std::map<std::string, OfNode> by_node_;
};

}  // namespace titan::core
