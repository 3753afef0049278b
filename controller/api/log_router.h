#pragma once

#include <atomic>
#include <functional>
#include <map>

#include "common/sync/sync.h"
#include "titan/v1/worker.pb.h"

namespace titan::api {

// Brings a worker's answer to the reader that asked for it.
class LogRouter {
 public:
  using Handler = std::function<void(const v1::LogData&)>;

  // The number to put into ReadLog.request. The handler runs at most once.
  int64_t expect(Handler handler) {
    sync::Lock lock(mutex_);
    handlers_[++last_] = std::move(handler);
    return last_;
  }
  void drop(int64_t request) {
    sync::Lock lock(mutex_);
    handlers_.erase(request);
  }
  void deliver(const v1::LogData& data) {
    Handler handler;
    {
      sync::Lock lock(mutex_);
      const auto it = handlers_.find(data.request());
      if (it == handlers_.end()) return;  // Its reader is gone.
      handler = std::move(it->second);
      handlers_.erase(it);
    }
    handler(data);
  }

 private:
  sync::Mutex mutex_;
  std::map<int64_t, Handler> handlers_ TITAN_GUARDED_BY(mutex_);
  int64_t last_ TITAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace titan::api
