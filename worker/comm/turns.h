#pragma once

#include <condition_variable>
#include <mutex>

namespace titan::comm {

// Lets two threads of a rank work in turns: one at a time, and a thread passes its turn on wherever it would wait for a
// collective. So the one computes while the other's transfer is under way, and still all ranks of a group issue their
// collectives in one order, because the turns change at the same places everywhere.
class Turns {
 public:
  // Makes the calling thread side 0 or 1 for as long as it lives; blocks until it is that side's turn. Side 0 begins.
  class Side {
   public:
    Side(Turns& turns, int side);
    ~Side();
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;
  };

  // Called before a wait. Gives the other side a turn; at once when this thread is no side of anything, or the other
  // one is done.
  static void pass();

 private:
  void wait_for(int side, std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return turn_ == side; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
  bool done_[2] = {false, false};
};

}  // namespace titan::comm
