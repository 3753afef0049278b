#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>

namespace titan::comm {

// Lets two halves of a rank's work alternate: one runs at a time and yields wherever it would wait for a collective.
// One half computes while the other's transfer is in flight, and still all ranks of a group issue their collectives in
// the same order, because the halves switch at the same places everywhere.
//
// A half is not a thread. Autograd runs backward nodes of GPU tensors on its own threads, which belong to the half
// whose backward pass it is: LibTorch propagates the calling thread's debug information to them, and the half is stored
// there. For the same reason only one half may run backward passes: both would need autograd's single thread of the
// device, and the half that waits for its turn there would block the other.
class Turns {
 public:
  // Thrown in a half that takes or yields its turn after the other half has failed.
  class Stopped : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
  };

  Turns();

  // Runs `work` on the calling thread as half 0 or 1, starting with that half's first turn. Half 0 starts. Does not
  // throw: an exception of `work` is stored and stops the other half.
  void run(int half, const std::function<void()>& work);

  // Exception of the first half that failed, or null. Read it after both have ended.
  std::exception_ptr failure() const;

  // Called before a wait: gives the other half a turn. Returns at once if the caller belongs to no half or the other
  // half is done. Throws Stopped.
  static void pass();

 private:
  struct State;
  struct Place;

  std::shared_ptr<State> state_;  // Also held by autograd's threads, which may end slightly later than the half.
};

}  // namespace titan::comm
