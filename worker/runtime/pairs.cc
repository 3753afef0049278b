#include "worker/runtime/pairs.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <set>
#include <vector>

#include "worker/comm/turns.h"
#include "worker/runtime/transfers.h"

namespace titan::runtime {

bool pairs_can_overlap(const pipeline::Schedule& schedule) {
  std::vector<size_t> next(schedule.steps.size(), 0);
  std::set<Message> made;
  const auto is_ready = [&](const pipeline::Step& step) {
    return std::all_of(step.actions.begin(), step.actions.end(), [&](const pipeline::Action& action) {
      const Message needed = needed_by(action, schedule.stages);
      return needed == kNoMessage || made.count(needed) > 0;
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.steps.size(); ++rank) {
      const std::vector<pipeline::Step>& steps = schedule.steps[rank];
      for (; next[rank] < steps.size() && is_ready(steps[next[rank]]); ++next[rank], moved = true) {
        for (const pipeline::Action& action : steps[next[rank]].actions) {
          made.insert(made_by(action, schedule.stages));
        }
      }
    }
  }
  for (size_t rank = 0; rank < schedule.steps.size(); ++rank) {
    if (next[rank] < schedule.steps[rank].size()) return false;
  }
  return true;
}

PairRunner::PairRunner() : thread_([this, threads = at::get_num_threads()] { serve(threads); }) {}

PairRunner::~PairRunner() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void PairRunner::serve(int compute_threads) {
  at::set_num_threads(compute_threads);
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
  std::exception_ptr failures[2];
  const auto side = [&](int index, const std::function<void()>& work) {
    const comm::Turns::Side own(turns, index);
    try {
      work();
    } catch (...) {
      failures[index] = std::current_exception();
    }
  };
  const std::function<void()> other = [&] { side(1, second); };
  {
    std::lock_guard lock(mutex_);
    work_ = &other;
    changed_.notify_all();
  }
  side(0, first);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_ == nullptr; });
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace titan::runtime
