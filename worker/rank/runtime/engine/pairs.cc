#include "worker/rank/runtime/engine/pairs.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <vector>

#include "worker/rank/comm/turns.h"
#include "worker/rank/runtime/engine/transfers.h"

namespace titan::runtime {

bool pairs_can_overlap(const pipeline::Schedule& schedule) {
  std::vector<size_t> next(schedule.steps.size(), 0);
  std::set<Message> made;
  const auto is_ready = [&](const pipeline::ScheduleStep& step) {
    return std::all_of(step.actions.begin(), step.actions.end(), [&](const pipeline::Action& action) {
      const Message needed = consumed_by(action, schedule.stages);
      return needed == kNoMessage || made.count(needed) > 0;
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.steps.size(); ++rank) {
      const std::vector<pipeline::ScheduleStep>& steps = schedule.steps[rank];
      for (; next[rank] < steps.size() && is_ready(steps[next[rank]]); ++next[rank], moved = true) {
        for (const pipeline::Action& action : steps[next[rank]].actions) {
          made.insert(produced_by(action, schedule.stages));
        }
      }
    }
  }
  for (size_t rank = 0; rank < schedule.steps.size(); ++rank) {
    if (next[rank] < schedule.steps[rank].size()) return false;
  }
  return true;
}

namespace {

// Returns the accelerator device of the calling thread. Empty without an accelerator.
std::optional<at::Device> present_device() {
  const auto type = at::getAccelerator();
  if (!type) return {};
  return c10::impl::VirtualGuardImpl(*type).getDevice();
}

}  // namespace

PairRunner::PairRunner()
    : thread_([this, threads = at::get_num_threads(), device = present_device()] {
        at::set_num_threads(threads);
        if (device) c10::impl::VirtualGuardImpl(device->type()).setDevice(*device);  // Threads start on the first.
        serve();
      }) {}

PairRunner::~PairRunner() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void PairRunner::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || work_ != nullptr; });
    if (ends_) return;
    const std::function<void()>& work = *work_;
    lock.unlock();
    work();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

void PairRunner::run(const std::function<void()>& first, const std::function<void()>& second) {
  comm::Turns turns;
  // Both halves use the caller's thread-local settings.
  const std::function<void()> other = at::wrapPropagateTLSState([&] { turns.run(1, second); });
  {
    std::lock_guard lock(mutex_);
    work_ = &other;
    changed_.notify_all();
  }
  turns.run(0, first);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_ == nullptr; });
  }
  if (const std::exception_ptr failure = turns.failure()) std::rethrow_exception(failure);
}

}  // namespace titan::runtime
