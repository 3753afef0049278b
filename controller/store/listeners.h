#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/base/sync/sync.h"
#include "controller/store/store.h"

namespace titan::store {

// Who wants to know about new revisions. Outlives its store through the handles.
class Listeners : public std::enable_shared_from_this<Listeners> {
 public:
  std::shared_ptr<void> add(Store::Listener listener) {
    sync::Lock lock(mutex_);
    const int id = next_++;
    listeners_[id] = std::move(listener);
    return {nullptr, [self = shared_from_this(), id](void*) { self->remove(id); }};
  }

  void announce(int64_t revision) {
    sync::Lock lock(mutex_);
    for (auto& [id, listener] : listeners_) listener(revision);
  }

 private:
  void remove(int id) {
    sync::Lock lock(mutex_);
    listeners_.erase(id);
  }

  sync::Mutex mutex_;
  std::map<int, Store::Listener> listeners_ TITAN_GUARDED_BY(mutex_);
  int next_ TITAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace titan::store
