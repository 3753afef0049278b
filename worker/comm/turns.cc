#include "worker/comm/turns.h"

namespace titan::comm {
namespace {

// What the calling thread is a side of, as at::GradMode belongs to a thread.
struct Place {
  Turns* turns = nullptr;
  int side = 0;
};
thread_local Place place;

}  // namespace

Turns::Side::Side(Turns& turns, int side) {
  place = {&turns, side};
  std::unique_lock lock(turns.mutex_);
  turns.wait_for(side, lock);
}

Turns::Side::~Side() {
  Turns& turns = *place.turns;
  const int side = place.side;
  place = {};
  // Under the lock: the other side may destroy `turns` as soon as it can go on.
  std::lock_guard lock(turns.mutex_);
  turns.done_[side] = true;
  turns.turn_ = 1 - side;
  turns.changed_.notify_all();
}

void Turns::pass() {
  if (place.turns == nullptr) return;
  Turns& turns = *place.turns;
  std::unique_lock lock(turns.mutex_);
  if (turns.done_[1 - place.side]) return;
  turns.turn_ = 1 - place.side;
  turns.changed_.notify_all();
  turns.wait_for(place.side, lock);
}

}  // namespace titan::comm
