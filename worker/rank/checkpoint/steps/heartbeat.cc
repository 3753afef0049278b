#include "worker/rank/checkpoint/steps/heartbeat.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"

namespace titan::checkpoint {
namespace {

std::string heartbeat_key(int rank) { return absl::StrCat("checkpoint/pulse/rank-", rank); }

}  // namespace

Heartbeat::Heartbeat(c10d::Store& store, int rank, absl::Duration every)
    : store_(store.clone()), thread_([this, key = heartbeat_key(rank), every] { beat(key, every); }) {}

Heartbeat::~Heartbeat() {
  {
    sync::Lock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void Heartbeat::beat(const std::string& key, absl::Duration every) {
  while (true) {
    try {
      store_->add(key, 1);
    } catch (const std::exception&) {
      return;  // The store is gone, so no rank can see the pulse any more.
    }
    sync::Lock lock(mutex_);
    if (!stop_) stopping_.wait_for(mutex_, absl::ToChronoNanoseconds(every));
    if (stop_) return;
  }
}

std::vector<HeartbeatMonitor::Lost> HeartbeatMonitor::lost(const std::vector<int>& ranks) {
  std::vector<Lost> silent;
  for (const int rank : ranks) {
    const int64_t beats = store_.add(heartbeat_key(rank), 0);  // Unlike get(), it never waits.
    const absl::Duration now = system_clock().monotonic();
    const auto [heard, first] = heard_.try_emplace(rank, Heard{beats, now});
    if (first || beats != heard->second.beats) {
      heard->second = {beats, now};
    } else if (now - heard->second.since > (beats > 0 ? silence_ : start_)) {
      silent.push_back({rank, now - heard->second.since});
    }
  }
  return silent;
}

}  // namespace titan::checkpoint
