#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/sync/sync.h"
#include "common/service/rpc/error.h"
#include "controller/reconcile/published.h"
#include "grpcpp/support/server_callback.h"

namespace titan::api {

// A server stream that pulls: refill() runs only when everything queued is written, so that a reader that does not read
// costs one small queue. wake() reports that there may be something new.
template <typename Message>
class Stream : public grpc::ServerWriteReactor<Message>,
               public reconcile::Waker,
               public std::enable_shared_from_this<Stream<Message>> {
 public:
  // Starts the stream, which keeps itself alive until OnDone().
  void begin() {
    self_ = this->shared_from_this();
    wake();
  }

  void wake() override {
    sync::Lock lock(mutex_);
    pump();
  }

  // Returns the waker to call a few times a second: it ends the stream as soon as `allowed` returns an error.
  std::shared_ptr<reconcile::Waker> guard(std::function<absl::Status()> allowed) {
    guard_ = std::make_shared<Guard>(*this, std::move(allowed));
    return guard_;
  }

  void OnWriteDone(bool ok) override {
    sync::Lock lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (ok) return pump();
    queue_.clear();
    end(absl::CancelledError("the reader is gone"));
    finish_when_written();  // Also needed when the stream was cancelled during this write.
  }

  void OnCancel() override {
    sync::Lock lock(mutex_);
    end(absl::CancelledError("the reader is gone"));
  }

  void OnDone() override {
    std::shared_ptr<Stream> self = std::move(self_);
    sync::Lock lock(mutex_);
    finished_ = true;
  }

 protected:
  // Queues what is available with add(), or ends the stream with end(). Runs under the lock.
  virtual void refill() = 0;

  void add(Message message) { queue_.push_back(std::move(message)); }
  // Ends the stream after the queue is written. An error drops the queue if no write is in flight.
  void end(const absl::Status& status) {
    if (ending_) return;
    ending_ = true;
    status_ = status;
    if (!status.ok() && !writing_) queue_.clear();
    finish_when_written();
  }
  bool ending() const { return ending_; }

  sync::Mutex mutex_;

 private:
  struct Guard : reconcile::Waker {
    Guard(Stream& owner, std::function<absl::Status()> check)
        : stream(owner.weak_from_this()), allowed(std::move(check)) {}
    void wake() override {
      const absl::Status now = allowed();
      if (now.ok()) return;
      if (const auto owner = stream.lock()) owner->stop(now);
    }
    const std::weak_ptr<Stream> stream;
    const std::function<absl::Status()> allowed;
  };

  // Ends the stream after the message that is being written.
  void stop(const absl::Status& why) {
    sync::Lock lock(mutex_);
    if (!queue_.empty()) queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
    end(why);
  }

  void pump() {
    if (writing_ || finished_) return;
    if (queue_.empty() && !ending_) refill();
    if (!queue_.empty() && !finished_) {
      writing_ = true;
      // No buffer hint: a snapshot's messages would stay in the transport until something else is written.
      this->StartWrite(&queue_.front());
      return;
    }
    finish_when_written();
  }

  void finish_when_written() {
    if (!ending_ || finished_ || writing_ || !queue_.empty()) return;
    finished_ = true;
    this->Finish(rpc::to_grpc(status_));
  }

  std::shared_ptr<Stream> self_;
  std::shared_ptr<Guard> guard_;
  std::deque<Message> queue_;
  bool writing_ = false, ending_ = false, finished_ = false;
  absl::Status status_;
};

}  // namespace titan::api
