#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>

namespace titan::comm {

// Lets two halves of a rank's work go on in turns: one at a time, and a half passes its turn on wherever it would wait
// for a collective. So the one computes while the other's transfer is under way, and still all ranks of a group issue
// their collectives in one order, because the turns change at the same places everywhere.
//
// A half is not a thread. Autograd runs backward nodes of a GPU's tensors on threads of its own, and they belong to the
// half whose backward pass it is: LibTorch takes the calling thread's debug information along to them, and that is
// where a half is written down. For the same reason not both halves may run backward passes: both would need autograd's
// one thread of the device, and the first to wait for its turn there would never get it.
class Turns {
 public:
  // Thrown in a half where it takes or passes a turn after the other half has failed: it must not go on.
  class Stopped : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
  };

  Turns();

  // Runs `work` on the calling thread as half 0 or 1, from that half's first turn on. Half 0 begins. Throws nothing:
  // what `work` throws is kept, and stops the other half.
  void run(int half, const std::function<void()>& work);

  // What the first half to fail threw; null: neither did. Read after both have ended.
  std::exception_ptr failure() const;

  // Called before a wait. Gives the other half a turn; at once when the caller belongs to no half, or the other one is
  // done. Throws Stopped.
  static void pass();

 private:
  struct State;
  struct Place;

  std::shared_ptr<State> state_;  // Also held by autograd's threads, which may end a little after the half.
};

}  // namespace titan::comm
