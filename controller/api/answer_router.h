#pragma once

#include <atomic>
#include <functional>
#include <map>

#include "common/sync/sync.h"
#include "titan/v1/worker.pb.h"

namespace titan::api {

// Ticks of 200 ms until a node that was asked counts as one that does not answer.
inline constexpr int kTicksToAnswer = 25;

// Brings a worker's answer to the reader that asked for it.
template <typename Answer>
class AnswerRouter {
 public:
  using Handler = std::function<void(const Answer&)>;

  // The number to put into the question's `request`. The handler runs at most once.
  int64_t expect(Handler handler) {
    sync::Lock lock(mutex_);
    handlers_[++last_] = std::move(handler);
    return last_;
  }
  void drop(int64_t request) {
    sync::Lock lock(mutex_);
    handlers_.erase(request);
  }
  void deliver(const Answer& answer) {
    Handler handler;
    {
      sync::Lock lock(mutex_);
      const auto it = handlers_.find(answer.request());
      if (it == handlers_.end()) return;  // Its reader is gone.
      handler = std::move(it->second);
      handlers_.erase(it);
    }
    handler(answer);
  }

 private:
  sync::Mutex mutex_;
  std::map<int64_t, Handler> handlers_ TITAN_GUARDED_BY(mutex_);
  int64_t last_ TITAN_GUARDED_BY(mutex_) = 0;
};

using LogRouter = AnswerRouter<v1::LogData>;
using TraceRouter = AnswerRouter<v1::TraceData>;

struct Routers {
  LogRouter logs;
  TraceRouter traces;
};

}  // namespace titan::api
