#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

// Distributes the failure of one rank to all others when ranks are processes. The first to fail writes its reason into
// the attempt's store, breaks its connections if it can, and exits. With sockets (Gloo, which has no abort) its exit
// closes them, which ends the ranks that wait for it within milliseconds, and in turn those that wait for them. NCCL's
// transports within a node give no notice, and a rank may share no group with the failed one. So every rank also waits
// at the store for a reason and breaks its own connections when one arrives, or when the store is gone, and rank 0 with
// it.
class FailureWatch {
 public:
  struct Setup {
    int rank = 0;
    int world = 1;
    c10::intrusive_ptr<c10d::Store> store;  // Keys of this attempt.
    // Called when this rank has failed and will exit: errors that other threads see on broken groups must not end the
    // process earlier. May be null.
    std::function<void()> expect_broken;
    // Writes what this rank's collectives were doing, when this or another rank has failed and before the connections
    // break. Called at most once, on a separate thread that is waited for briefly. May be null.
    std::function<void()> record;
    // Returns once the stacks of this rank's threads have been captured, or after a timeout. Called after record(), and
    // only if a collective timed out or ranks disagree. May be null.
    std::function<void()> show_stacks;
    // How long a rank that ends waits for the stacks of the other ranks that have begun to capture theirs. A stopped
    // rank (SIGSTOP, a lost machine) does not begin and is not waited for beyond a second.
    std::chrono::milliseconds stacks_timeout{3'000};
    // How long a rank whose connection broke waits for a reason before it gives that as its own. A rank with a timeout
    // closes its connections (Gloo) slightly before it writes its reason. A killed rank writes none.
    std::chrono::milliseconds word_timeout{500};
    // Breaks this rank's connections and returns whether it could break any. Called at most once, on a separate thread
    // that is waited for only briefly, so what it uses must live until the process ends. May throw.
    std::function<bool()> break_connections;
    // Ends the process: another rank has failed, and this one did not notice for `notice_timeout`, because it computes
    // or waits for a device whose work will never end. Does not return.
    std::function<void(const Failure&)> leave;
    std::chrono::milliseconds notice_timeout{5'000};
  };

  explicit FailureWatch(Setup setup);
  // Afterwards none of the functions is called. A break_connections() that has begun may continue.
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // Call it when this rank has failed. Notifies the other ranks and returns the failure to report. For a lost peer it
  // names the reason of the first rank to fail; the same for numbers and kernels that went wrong after this rank's
  // connections were broken for it. With recordings it stays until all ranks have theirs, at most about a second,
  // because the first exit of a rank may end all others. Takes at most a few seconds, even if store and disk do not
  // answer and connections do not break.
  Failure failed(const Failure& own);

  // For a thread that cannot return a failure to its caller: does the same as failed() and then ends the process with
  // the failure to report. If this rank is about to exit, it waits for that. May be called after this watch is
  // destroyed.
  std::function<void(const Failure& own)> fail_and_leave() const;

  // For code that ends the process without failed(), with the text of its error. Notifies the other ranks, records this
  // rank, and waits until the others have recorded, like failed(). May be called after this watch is destroyed.
  std::function<void(const std::string& words)> record_first() const;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // Shared with threads that may be stuck in a call to the store.
};

}  // namespace titan::runtime
