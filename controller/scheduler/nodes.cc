#include "controller/scheduler/nodes.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "controller/scheduler/queue.h"

namespace titan::scheduler {
namespace {

constexpr char kHeld = 1, kClaimed = 2;

void mark(std::vector<char>& taken, const std::vector<int>& devices, char as) {
  for (const int device : devices) {
    if (device >= 0 && device < static_cast<int>(taken.size())) taken[device] = std::max(taken[device], as);
  }
}

// False if the node has come back with another kind of device.
bool counts(const Hold& hold, const NodeInfo& node) { return hold.job->job.device == node.node.device; }

}  // namespace

void Nodes::attach(NodeInfo& node) {
  known_.add(node.node.devices, 1);
  if (!node.node.cordoned) in_service_.add(node.node.devices, 1);
}

void Nodes::detach(NodeInfo& node) {
  known_.add(node.node.devices, -1);
  if (!node.node.cordoned) in_service_.add(node.node.devices, -1);
  node.known = false;
  refresh(node);
}

NodeInfo::Standing Nodes::judge(NodeInfo& node) {
  NodeInfo::Standing now;
  now.usable = node.known && node.node.ready && !node.node.cordoned;
  if (!now.usable) return now;
  now.targeted = node.targeted;
  now.devices = node.node.devices;
  if (!node.hidden) now.index = &index(node.targeted && !merged_);
  taken_.assign(now.devices, 0);
  for (const Hold& hold : node.holds) {
    if (counts(hold, node) && !hold.job->lifted) mark(taken_, *hold.devices, kHeld);
  }
  for (const auto& [owner, claim] : node.claims) {
    mark(taken_, claim.devices, kClaimed);
    now.drained = std::max(now.drained, claim.ends);
  }
  now.free = static_cast<int>(std::count(taken_.begin(), taken_.end(), 0));
  now.unclaimed = now.devices - static_cast<int>(std::count(taken_.begin(), taken_.end(), kClaimed));
  return now;
}

bool Nodes::refresh(NodeInfo& node) {
  if (node.node.device != device_) return false;
  const NodeInfo::Standing before = node.standing;
  const NodeInfo::Standing now = judge(node);
  if (before == now) return false;
  if (before.index == now.index) {
    if (now.index != nullptr) now.index->move(node, before.free, now.free);
  } else {
    if (before.index != nullptr) before.index->move(node, before.free, 0);
    if (now.index != nullptr) now.index->move(node, 0, now.free);
  }
  const auto counted_as = [](const NodeInfo::Standing& s) { return std::tuple(s.usable, s.targeted, s.unclaimed); };
  if (counted_as(before) != counted_as(now)) {
    if (before.usable) (before.targeted ? target_unclaimed_ : open_unclaimed_).add(before.unclaimed, -1);
    if (now.usable) (now.targeted ? target_unclaimed_ : open_unclaimed_).add(now.unclaimed, 1);
  }
  const auto drains_as = [](const NodeInfo::Standing& s) {
    return std::tuple(s.usable, s.targeted, s.devices, s.unclaimed, s.drained);
  };
  if (drains_as(before) != drains_as(now)) {
    if (before.usable) {
      usable_.add(before.devices, -1);
      draining_[before.devices].erase({before.drained, before.unclaimed, &node});
      if (before.targeted) target_draining_.erase({before.drained, before.unclaimed, &node});
    }
    if (now.usable) {
      usable_.add(now.devices, 1);
      draining_[now.devices].insert({now.drained, now.unclaimed, &node});
      if (now.targeted) target_draining_.insert({now.drained, now.unclaimed, &node});
    }
  }
  node.standing = now;
  return now.free > before.free || now.unclaimed > before.unclaimed || now.devices > before.devices;
}

void Nodes::hide(NodeInfo& node, bool hidden) {
  node.hidden = hidden;
  refresh(node);
}

void Nodes::target(NodeInfo& node, bool targeted) {
  node.targeted = targeted;
  refresh(node);
}

void Nodes::merge(const NodeSet& targeted, bool merged) {
  if (merged_ == merged) return;
  merged_ = merged;
  for (NodeInfo* node : targeted) refresh(*node);
}

NodeSet Nodes::soonest(const GangRequest& request, const std::set<const NodeInfo*>& without) const {
  using Place = std::pair<std::set<Draining>::const_iterator, std::set<Draining>::const_iterator>;
  std::vector<Place> widths;  // One for each useful number of devices.
  for (const auto& [devices, nodes] : draining_) {
    if (request.share(devices) > 0 && !nodes.empty()) widths.emplace_back(nodes.begin(), nodes.end());
  }
  NodeSet chosen;
  for (int left = request.ranks; left > 0;) {
    Place* next = nullptr;
    for (Place& width : widths) {
      if (width.first != width.second && (next == nullptr || *width.first < *next->first)) next = &width;
    }
    if (next == nullptr) return {};
    NodeInfo* node = (next->first++)->node;
    if (without.contains(node)) continue;
    chosen.insert(node);
    left -= request.share(node->standing.devices);
  }
  return chosen;
}

NodeInfo* Nodes::slowest(const GangRequest& request) const {
  for (auto it = target_draining_.rbegin(); it != target_draining_.rend(); ++it) {
    const NodeInfo::Standing& now = it->node->standing;
    if (request.share(now.unclaimed) < request.share(now.devices)) return it->node;
  }
  return nullptr;
}

absl::Time Nodes::targets_drained() const {
  return target_draining_.empty() ? absl::InfinitePast() : target_draining_.rbegin()->drained;
}

std::vector<int> choose_devices(const NodeInfo& node, const Waiting& job, int count) {
  std::vector<char> taken(node.node.devices, 0);
  for (const Hold& hold : node.holds) {
    if (counts(hold, node) && hold.job != &job) mark(taken, *hold.devices, hold.job->lifted ? kHeld : kClaimed);
  }
  for (const auto& [owner, claim] : node.claims) mark(taken, claim.devices, kClaimed);
  std::vector<int> chosen;
  const auto choose = [&](int device, char as) {
    if (static_cast<int>(chosen.size()) == count || device < 0 || device >= static_cast<int>(taken.size())) return;
    if (taken[device] != as) return;
    chosen.push_back(device);
    taken[device] = kClaimed;
  };
  const auto own = job.job.reserved.find(node.node.name);
  if (own != job.job.reserved.end()) {
    for (const int device : own->second) choose(device, 0);
  }
  for (int device = 0; device < node.node.devices; ++device) choose(device, 0);
  for (int device = 0; device < node.node.devices; ++device) choose(device, kHeld);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<int> free_devices(const NodeInfo& node) {
  std::vector<char> taken(node.node.devices, 0);
  for (const Hold& hold : node.holds) {
    if (counts(hold, node)) mark(taken, *hold.devices, kHeld);
  }
  for (const auto& [owner, claim] : node.claims) mark(taken, claim.devices, kClaimed);
  std::vector<int> free;
  for (int device = 0; device < node.node.devices; ++device) {
    if (taken[device] == 0) free.push_back(device);
  }
  return free;
}

}  // namespace titan::scheduler
