#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

// How the failure of one rank reaches all others when ranks are processes. The first to fail writes its reason into the
// attempt's store, breaks its connections where it can and leaves. Over sockets (Gloo, which has no abort) its leaving
// closes them, and that alone ends whoever waits for it within milliseconds, and so on through the mesh. NCCL's
// transports inside a node say nothing, and a rank may share no group with the one that failed, so every rank also
// waits at the store for a reason, and breaks its own connections when one comes (or the store is gone, and rank 0 with
// it).
class FailureWatch {
 public:
  struct Setup {
    int rank = 0;
    int world = 1;
    c10::intrusive_ptr<c10d::Store> store;  // This attempt's keys.
    // This rank has failed and will leave by itself: what other threads make of broken groups must not end the process
    // before. May be null.
    std::function<void()> expect_broken;
    // Writes down what this rank's collectives were doing: when it fails, or another one has, before its connections
    // break. Called once at most, on a thread of its own that is waited for a moment. May be null.
    std::function<void()> record;
    // Returns once somebody has looked at where this rank's threads are, or after a while. Called beside record(), and
    // only where a collective took too long or ranks disagree. May be null.
    std::function<void()> show_stacks;
    // So long a rank that ends waits for the looks at the others that have begun with theirs. One that stands still
    // (SIGSTOP, a machine that is gone) begins with nothing, and is not waited for beyond a second.
    std::chrono::milliseconds stacks_timeout{3'000};
    // So long a rank whose connection broke waits for a reason before it gives that as one: a rank that has waited too
    // long closes its connections first (Gloo), and says so a moment later. One that was killed says nothing.
    std::chrono::milliseconds word_timeout{500};
    // Breaks this rank's connections, and says whether there were any that it could break. Called once at most, on a
    // thread of its own that nobody waits for long: what it needs must stay until the process ends. May throw.
    std::function<bool()> break_connections;
    // Ends the process: another rank has failed, and this one did not notice for `patience` (it computes, or waits for
    // a device whose work will never end). Does not return.
    std::function<void(const Failure&)> leave;
    std::chrono::milliseconds patience{5'000};
  };

  explicit FailureWatch(Setup setup);
  // From then on nothing is called any more; a break_connections() that has begun may go on.
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // This rank has failed: tells the others, and returns what it should report. A lost peer is named with the reason of
  // the first rank to fail; so are numbers and kernels that went wrong after this rank's connections were broken for
  // it. With recordings it stays until all ranks have theirs, or a second: the first end of a rank may bring that of
  // all others. Takes at most a few seconds, also when store and disk do not answer and connections do not break.
  Failure failed(const Failure& own);

  // For a thread whose caller cannot be told of a failure: as failed(), and then ends the process with what should be
  // reported. Where this rank is about to leave already, it gets the time to. May be called when this watch is gone.
  std::function<void(const Failure& own)> fail_and_leave() const;

  // For whoever ends the process without failed(), with these words: tells the others, records what this rank did, and
  // stays until the others have, as failed() does. May be called when this watch is gone.
  std::function<void(const std::string& words)> record_first() const;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // Shared with threads that may be stuck in a call to the store.
};

}  // namespace titan::runtime
