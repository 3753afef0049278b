#include "controller/scheduler/node_info.h"

#include <algorithm>

#include "controller/scheduler/node_index.h"

namespace titan::scheduler {

NodeInfo& Ledger::at(const std::string& name) {
  std::unique_ptr<NodeInfo>& state = nodes_[name];
  if (state == nullptr) {
    state = std::make_unique<NodeInfo>();
    state->node.name = name;
    state->key = node_key("", name);
  }
  return *state;
}

NodeInfo* Ledger::find(const std::string& name) {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : it->second.get();
}

const NodeInfo* Ledger::find(const std::string& name) const {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : it->second.get();
}

NodeInfo& Ledger::claim(const std::string& owner, const std::string& node, const std::vector<int>& devices,
                        absl::Time ends) {
  NodeInfo& state = at(node);
  Claim& claim = state.claims[owner];
  for (const int device : devices) {
    if (std::find(claim.devices.begin(), claim.devices.end(), device) == claim.devices.end()) {
      claim.devices.push_back(device);
    }
  }
  claim.ends = ends;
  owners_[owner][node] = &state;
  return state;
}

std::vector<NodeInfo*> Ledger::release(const std::string& owner) {
  std::vector<NodeInfo*> nodes;
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return nodes;
  for (const auto& [name, node] : it->second) {
    node->claims.erase(owner);
    nodes.push_back(node);
  }
  owners_.erase(it);
  return nodes;
}

std::vector<NodeInfo*> Ledger::release(const std::string& owner, const std::string& node) {
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return {};
  const auto claimed = it->second.find(node);
  if (claimed == it->second.end()) return {};
  NodeInfo* state = claimed->second;
  state->claims.erase(owner);
  it->second.erase(claimed);
  if (it->second.empty()) owners_.erase(it);
  return {state};
}

void Ledger::forget_if_unused(const NodeInfo& node) {
  if (!node.known && node.claims.empty() && node.mentions == 0) nodes_.erase(std::string(node.node.name));
}

}  // namespace titan::scheduler
