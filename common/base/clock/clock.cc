#include "common/base/clock/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace titan {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time now() const override { return absl::Now(); }
  absl::Duration monotonic() const override {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return absl::DurationFromTimespec(time);
  }
};

}  // namespace

const Clock& system_clock() {
  static const SystemClock* clock = new SystemClock;
  return *clock;
}

}  // namespace titan
