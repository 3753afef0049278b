#pragma once

// Makes transactions durable in groups, answers them in log order, and announces new revisions to listeners.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "controller/store/store.h"

namespace titan::store {

// Listeners to new revisions. Handles keep it alive after its store.
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

struct WriterOptions {
  int group_limit = 512;            // Most transactions that become durable together.
  int64_t group_bytes = 16 << 20;   // Approximate limit of their bytes.
  int64_t queue_limit = 65'536;     // Waiting transactions beyond which clients are refused.
  int64_t queue_bytes = 256 << 20;  // Waiting bytes beyond which clients are refused.
  absl::Duration full_retry = absl::Milliseconds(250);
  absl::Duration idle_after = absl::Seconds(2);
};

// The first thread takes waiting transactions in groups and makes each group durable. The second one answers in log
// order and announces durable revisions to the listeners, while the next group is written. The third one answers
// refused transactions, so that clients get the refusal while a write is under way.
class Writer {
 public:
  struct Queued {
    Transaction transaction;
    Committed done;
    int64_t bytes = 0;
  };
  using Group = std::vector<Queued>;
  // All of them run on the writing thread.
  struct Backend {
    // Makes a group durable and visible. `results` gets a revision, Aborted or InvalidArgument for each transaction.
    // ResourceExhausted: nothing of the group was written, and it may be tried again. Any other error: the store has
    // failed.
    std::function<absl::Status(const Group& group, std::vector<absl::StatusOr<int64_t>>& results)> write;
    std::function<void()> idle;                       // Called once when nothing has followed a group for `idle_after`.
    std::function<void(const absl::Status&)> failed;  // Called once, after everything was answered.
  };

  Writer(WriterOptions options, Backend backend);
  ~Writer() { close(); }
  void start();
  // Writes what was queued, then ends the threads. Transactions that a full disk does not take get Unavailable.
  void close();

  // See Store::commit.
  void commit(Transaction transaction, Committed done);
  std::shared_ptr<void> subscribe(Store::Listener listener) { return listeners_->add(std::move(listener)); }
  // Runs the task on the writing thread between two groups. False: it never runs, since the store failed or closes.
  bool post(std::function<void()> task);
  // Ends the store: everything queued, and everything that follows, gets Unavailable.
  void fail(const absl::Status& status);
  QueueSize queued() const;

 private:
  // A durable group.
  struct Written {
    Group group;
    std::vector<absl::StatusOr<int64_t>> results;
  };
  struct Work {
    std::deque<std::function<void()>> tasks;
    Group group;
    bool idle = false, end = false;
  };

  absl::Status place(Queued& queued);
  void loop();
  void refuse_loop();
  void answer_loop();
  void answer_all(Written written);
  Work next();
  Group take() TITAN_REQUIRES(mutex_);
  void refuse_waiting() TITAN_REQUIRES(mutex_);
  void write(Group group);
  void keep(Group group, const absl::Status& status);
  void end();

  const WriterOptions options_;
  const Backend backend_;
  const std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();

  mutable sync::Mutex mutex_;
  sync::Condition wake_;
  std::deque<Queued> queue_ TITAN_GUARDED_BY(mutex_);
  int64_t queued_bytes_ TITAN_GUARDED_BY(mutex_) = 0;
  std::vector<Committed> refused_ TITAN_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ TITAN_GUARDED_BY(mutex_);
  absl::Status failed_ TITAN_GUARDED_BY(mutex_);
  bool ended_ TITAN_GUARDED_BY(mutex_) = false;  // No more transactions are accepted.
  bool closing_ TITAN_GUARDED_BY(mutex_) = false;
  bool written_ TITAN_GUARDED_BY(mutex_) = false;  // A group was written since the last idle moment.
  // A full disk did not take transactions that must not be lost. They are tried again at retry_at_, and clients are
  // refused meanwhile.
  bool full_ TITAN_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point retry_at_ TITAN_GUARDED_BY(mutex_);
  std::deque<Written> unanswered_ TITAN_GUARDED_BY(mutex_);
  int64_t num_unanswered_ TITAN_GUARDED_BY(mutex_) = 0;  // Number of transactions in unanswered_.
  bool is_answering_ TITAN_GUARDED_BY(mutex_) = false;   // A group that has left unanswered_ is being answered.
  sync::Condition refuse_wake_, answer_wake_, answered_;
  std::thread thread_, refusing_, answering_;
};

}  // namespace titan::store
