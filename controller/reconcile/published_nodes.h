#pragma once

// Nodes as clients may see them: the core's newest views, read without its lock. Unlike jobs they are shown as decided,
// which may not be durable yet.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/plan/planner/memory_fit.h"
#include "controller/core/view.h"

namespace titan::reconcile {

class PublishedNodes {
 public:
  void show(const core::NodeViewPtr& view);
  // Changes only the time at which the node was last heard of.
  void beat(const std::string& name, absl::Time at);
  void erase(const std::string& name);

  absl::StatusOr<core::NodeView> find(const std::string& name) const;  // Errors: NotFound (NODE_NOT_FOUND).
  // Returns at most `limit` nodes after the name `after`, by name.
  std::vector<core::NodeView> page(const std::string& after, size_t limit) const;
  // Returns all nodes by name, read in pages, so not all are from one moment.
  std::vector<core::NodeView> all() const;
  // Visits all nodes by name, with the time at which each was last heard of. Nodes are read in pages and visited
  // without the lock.
  void each(const std::function<void(const core::NodeView&, absl::Time last_beat)>& visit) const;
  // Returns the devices and memory of the nodes that have this kind of device.
  std::vector<planner::NodeMemory> node_memory(const std::string& device) const;

 private:
  struct Shown {
    core::NodeViewPtr view;
    absl::Time last_beat;  // Time of the view, or a later one.
  };
  using NodeMemories = std::vector<planner::NodeMemory>;

  static core::NodeView as_of_now(const Shown& shown);
  std::vector<Shown> shown_after(const std::string& name, size_t limit) const;

  mutable sync::Mutex mutex_;
  std::map<std::string, Shown> by_name_ TITAN_GUARDED_BY(mutex_);
  // By kind of device. Built on demand, and valid until a node comes, goes or has other devices.
  mutable std::map<std::string, std::shared_ptr<const NodeMemories>> memory_by_device_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::reconcile
