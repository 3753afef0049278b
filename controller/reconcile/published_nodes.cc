#include "controller/reconcile/published_nodes.h"

#include <algorithm>
#include <utility>

#include "controller/core/core.h"

namespace titan::reconcile {
namespace {

using core::NodeView;
using core::NodeViewPtr;

constexpr size_t kPage = 500;

bool same_devices(const NodeView& a, const NodeView& b) {
  const job::NodeRecord &one = a.node.record, &other = b.node.record;
  return one.device == other.device && one.devices == other.devices && one.memory_bytes == other.memory_bytes &&
         one.device_memory_bytes == other.device_memory_bytes;
}

planner::NodeMemory memory_of(const job::NodeRecord& record) {
  // A worker of an older version does not report the memory of its devices. CPU ranks share the host's memory.
  const int64_t share = record.device == "cpu" ? record.memory_bytes / record.devices : 0;
  return {record.devices, record.device_memory_bytes > 0 ? record.device_memory_bytes : share};
}

}  // namespace

void PublishedNodes::show(const NodeViewPtr& view) {
  sync::Lock lock(mutex_);
  Shown& shown = by_name_[view->node.record.name];
  if (shown.view == nullptr || !same_devices(*shown.view, *view)) memory_by_device_.clear();
  shown = {view, view->node.last_beat_time};
}

void PublishedNodes::beat(const std::string& name, absl::Time at) {
  sync::Lock lock(mutex_);
  const auto shown = by_name_.find(name);
  if (shown != by_name_.end()) shown->second.last_beat = at;
}

void PublishedNodes::erase(const std::string& name) {
  sync::Lock lock(mutex_);
  if (by_name_.erase(name) > 0) memory_by_device_.clear();
}

NodeView PublishedNodes::as_of_now(const Shown& shown) {
  NodeView view = *shown.view;
  view.node.last_beat_time = shown.last_beat;
  return view;
}

absl::StatusOr<NodeView> PublishedNodes::find(const std::string& name) const {
  Shown found;
  {
    sync::Lock lock(mutex_);
    const auto shown = by_name_.find(name);
    if (shown == by_name_.end()) return core::no_such_node(name);
    found = shown->second;
  }
  return as_of_now(found);
}

std::vector<PublishedNodes::Shown> PublishedNodes::shown_after(const std::string& name, size_t limit) const {
  std::vector<Shown> found;
  sync::Lock lock(mutex_);
  for (auto it = by_name_.upper_bound(name); it != by_name_.end() && found.size() < limit; ++it) {
    found.push_back(it->second);
  }
  return found;
}

void PublishedNodes::each(const std::function<void(const NodeView&, absl::Time last_beat)>& visit) const {
  std::vector<Shown> shown;
  do {
    shown = shown_after(shown.empty() ? "" : shown.back().view->node.record.name, kPage);
    for (const Shown& one : shown) visit(*one.view, one.last_beat);
  } while (shown.size() == kPage);
}

std::vector<NodeView> PublishedNodes::page(const std::string& after, size_t limit) const {
  const std::vector<Shown> found = shown_after(after, limit);
  std::vector<NodeView> views(found.size());
  std::transform(found.begin(), found.end(), views.begin(), as_of_now);
  return views;
}

std::vector<NodeView> PublishedNodes::all() const {
  std::vector<NodeView> views;
  for (size_t before = 0;; before = views.size()) {
    const std::string after = views.empty() ? "" : views.back().node.record.name;
    for (NodeView& view : page(after, kPage)) views.push_back(std::move(view));
    if (views.size() < before + kPage) return views;
  }
}

std::vector<planner::NodeMemory> PublishedNodes::node_memory(const std::string& device) const {
  std::shared_ptr<const NodeMemories> node_memory;
  {
    sync::Lock lock(mutex_);
    std::shared_ptr<const NodeMemories>& made = memory_by_device_[device];
    if (made == nullptr) {
      auto all = std::make_shared<NodeMemories>();
      for (const auto& [name, shown] : by_name_) {
        const job::NodeRecord& record = shown.view->node.record;
        if (record.device == device && record.devices > 0) all->push_back(memory_of(record));
      }
      made = std::move(all);
    }
    node_memory = made;
  }
  return *node_memory;
}

}  // namespace titan::reconcile
