#pragma once

// Time and randomness of a simulation: one queue of events, one source of random numbers. The same seed gives the same
// history.

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock/clock.h"

namespace titan::simulation {

// SplitMix64 (Steele, Lea and Flood, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double fraction() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return fraction() < probability; }
  int between(int low, int high) { return low + static_cast<int>(next() % static_cast<uint64_t>(high - low + 1)); }
  absl::Duration between(absl::Duration low, absl::Duration high) { return low + (high - low) * fraction(); }

 private:
  uint64_t state_;
};

class Timeline {
 public:
  explicit Timeline(uint64_t seed) : random(seed) {}

  void at(absl::Duration when, std::function<void()> what) {
    size_t place = waiting_.size();
    if (free_.empty()) {
      waiting_.push_back(std::move(what));
    } else {
      place = free_.back();
      free_.pop_back();
      waiting_[place] = std::move(what);
    }
    queue_.push({when, next_++, place});
  }
  void after(absl::Duration delay, std::function<void()> what) { at(now() + delay, std::move(what)); }
  absl::Duration now() const { return clock.monotonic(); }

  // Runs all events up to `end`.
  void run_until(absl::Duration end) {
    while (!queue_.empty() && queue_.top().when <= end) {
      const Item next = queue_.top();
      queue_.pop();
      const std::function<void()> what = std::exchange(waiting_[next.place], nullptr);
      free_.push_back(next.place);
      const absl::Duration when = next.when;
      at_this_instant_ = when > now() ? 0 : at_this_instant_ + 1;
      if (when > now()) clock.advance(when - now());
      ++events;
      if (at_this_instant_ > kMaxAtOnce) return;
      what();
    }
    if (end > now()) clock.advance(end - now());
  }

  FakeClock clock;  // The controller's clock; those of the nodes differ from it.
  Random random;
  int64_t events = 0;
  // Returns whether events keep scheduling each other without any progress of time.
  bool is_livelocked() const { return at_this_instant_ > kMaxAtOnce; }

 private:
  struct Item {  // Small, because the heap moves items.
    absl::Duration when;
    int64_t order = 0;
    size_t place = 0;
    bool operator<(const Item& other) const { return when != other.when ? when > other.when : order > other.order; }
  };
  static constexpr int64_t kMaxAtOnce = 100'000;
  int64_t at_this_instant_ = 0;
  std::priority_queue<Item> queue_;
  std::vector<std::function<void()>> waiting_;  // Callbacks by place.
  std::vector<size_t> free_;                    // Places without a callback.
  int64_t next_ = 0;
};

}  // namespace titan::simulation
