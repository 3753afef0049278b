#pragma once

// What clients may see of nodes: the core's views as it last changed them, read without its lock. Unlike jobs they are
// shown as decided, which may not be durable yet.

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
  // It was heard of; nothing else has changed.
  void beat(const std::string& name, absl::Time at);
  void erase(const std::string& name);

  absl::StatusOr<core::NodeView> find(const std::string& name) const;
  // By name, after `after`, at most `limit`.
  std::vector<core::NodeView> page(const std::string& after, size_t limit) const;
  // All by name, read in pages: not at one moment.
  std::vector<core::NodeView> all() const;
  // Visits all by name with the time at which each was last heard of, read in pages and without the lock.
  void each(const std::function<void(const core::NodeView&, absl::Time last_beat)>& visit) const;
  // The nodes that have such devices.
  std::vector<planner::Room> rooms(const std::string& device) const;

 private:
  struct Shown {
    core::NodeViewPtr view;
    absl::Time last_beat;  // That of the view, or a later one.
  };
  using Rooms = std::vector<planner::Room>;

  static core::NodeView as_of_now(const Shown& shown);
  std::vector<Shown> shown_after(const std::string& name, size_t limit) const;

  mutable sync::Mutex mutex_;
  std::map<std::string, Shown> by_name_ TITAN_GUARDED_BY(mutex_);
  // By kind of device; made when it is asked for, until a node comes, goes or has other devices.
  mutable std::map<std::string, std::shared_ptr<const Rooms>> rooms_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::reconcile
