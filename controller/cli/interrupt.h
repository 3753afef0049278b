#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace titan::cli {

// While it lives, termination signals call `on_signal(n)` on a separate thread instead of ending the process: SIGINT,
// SIGTERM and those of common/base/host/signals.h. n is 1 for the first signal and grows with each later SIGINT only: a
// user who presses Ctrl-C again is in a hurry, while schedulers warn several times with different signals.
// block_signals() must have run in main before any other thread started.
class Interrupt {
 public:
  explicit Interrupt(std::function<void(int count)> on_signal);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int count() const { return count_.load(); }

  // Blocks these signals in this thread and all later ones. Without an Interrupt they end the process as usual once
  // unblock_signals() ran.
  static void block_signals();
  static void unblock_signals();

 private:
  void watch();
  void take(int number);

  std::function<void(int)> on_signal_;
  std::atomic<int> count_ = 0;
  int wake_;  // An eventfd that ends the thread.
  std::thread thread_;
};

}  // namespace titan::cli
