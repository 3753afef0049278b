#pragma once

#include <chrono>
#include <cstdint>

#include "worker/rank/comm/shared_area.h"

namespace titan::comm {

// How ranks wake each other through their areas, so that nobody waits by looking.

// Wakes the owner of the area, or keeps it from falling asleep.
void ring(AreaHeader& header);

// The same if it sleeps or is about to. What it is to see must have been stored before: either this sees that it
// sleeps, or the owner sees that when it looks once more after Sleep has begun.
void ring_if_asleep(AreaHeader& header);

// The owner's sleep, on one of its threads.
class Sleep {
 public:
  // From here on rings count: what is to be waited for must be looked at once more after this.
  explicit Sleep(AreaHeader& header);
  ~Sleep() { header_.asleep.value.fetch_sub(1); }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Returns after the next ring, or this long.
  void until_rung(std::chrono::milliseconds longest);
  bool rung() const { return header_.bell.value.load() != bell_; }

 private:
  AreaHeader& header_;
  const uint32_t bell_;
};

}  // namespace titan::comm
