#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/base/sync/sync.h"
#include "titan/v1/worker.pb.h"

namespace titan::api {

// Ticks of 200 ms after which a node that has not answered is considered unresponsive.
inline constexpr int kTicksToAnswer = 25;

// Passes a worker's answer to the reader that sent the question.
template <typename Answer>
class AnswerRouter {
 public:
  using Handler = std::function<void(const Answer&)>;

  // Returns the number for the `request` field of the question to this node. The handler runs at most once.
  int64_t expect(const std::string& node, Handler handler) {
    sync::Lock lock(mutex_);
    questions_[++last_] = {node, std::move(handler)};
    return last_;
  }
  // Forgets a question; its handler does not run any more.
  void drop(int64_t request) {
    sync::Lock lock(mutex_);
    questions_.erase(request);
  }
  // Runs the question's handler. Returns false when the question went to another node: numbers are consecutive, so any
  // node could guess one.
  bool deliver(const std::string& node, const Answer& answer) {
    Handler handler;
    {
      sync::Lock lock(mutex_);
      const auto it = questions_.find(answer.request());
      if (it == questions_.end()) return true;  // Its reader is gone.
      if (it->second.node != node) return false;
      handler = std::move(it->second.handler);
      questions_.erase(it);
    }
    handler(answer);
    return true;
  }

 private:
  struct Question {
    std::string node;
    Handler handler;
  };

  sync::Mutex mutex_;
  std::map<int64_t, Question> questions_ TITAN_GUARDED_BY(mutex_);
  int64_t last_ TITAN_GUARDED_BY(mutex_) = 0;
};

using LogRouter = AnswerRouter<v1::LogData>;
using TraceRouter = AnswerRouter<v1::TraceData>;

struct Routers {
  LogRouter logs;
  TraceRouter traces;
};

}  // namespace titan::api
