#include "worker/rank/comm/turns.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <condition_variable>
#include <mutex>
#include <utility>

namespace titan::comm {
namespace {

// LibTorch has no kind for external use. This one is for serving models, which Titan does not do.
constexpr auto kKind = c10::DebugInfoKind::INFERENCE_CONTEXT;

}  // namespace

struct Turns::State {
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  bool done[2] = {false, false};
  std::exception_ptr failure;

  void give(int half) {
    turn = half;
    changed.notify_all();
  }

  void await(int half, std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] { return turn == half || failure; });
    if (failure) throw Stopped("the other half of the pair has failed");
  }
};

struct Turns::Place : c10::DebugInfoBase {
  Place(std::shared_ptr<State> turns, int own) : state(std::move(turns)), half(own) {}

  const std::shared_ptr<State> state;
  const int half;
};

Turns::Turns() : state_(std::make_shared<State>()) {}

void Turns::run(int half, const std::function<void()>& work) {
  State& state = *state_;
  std::exception_ptr failure;
  try {
    {
      std::unique_lock lock(state.mutex);
      state.await(half, lock);
    }
    const c10::DebugInfoGuard here(kKind, std::make_shared<Place>(state_, half));
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  std::lock_guard lock(state.mutex);
  if (!state.failure) state.failure = failure;
  state.done[half] = true;
  state.give(1 - half);
}

std::exception_ptr Turns::failure() const {
  std::lock_guard lock(state_->mutex);
  return state_->failure;
}

void Turns::pass() {
  const auto* place = static_cast<Place*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (place == nullptr) return;
  State& state = *place->state;
  const int other = 1 - place->half;
  std::unique_lock lock(state.mutex);
  if (!state.done[other]) state.give(other);
  state.await(place->half, lock);
}

}  // namespace titan::comm
