#include "worker/rank/trace/spans.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace titan::trace {
namespace {

int64_t this_thread() {
  thread_local const int64_t id = syscall(SYS_gettid);
  return id;
}

}  // namespace

int64_t now_ns() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void SpanRecorder::start() {
  sync::Lock lock(mutex_);
  recorded_ = {.begin_ns = now_ns(), .thread_id = this_thread()};
  recording_.store(true, std::memory_order_relaxed);
}

RecordedSpans SpanRecorder::stop() {
  sync::Lock lock(mutex_);
  recording_.store(false, std::memory_order_relaxed);
  recorded_.end_ns = now_ns();
  for (const auto& [number, work] : under_way_) keep(work, recorded_.end_ns);
  return std::exchange(recorded_, {});
}

void SpanRecorder::add(Transfer transfer) {
  sync::Lock lock(mutex_);
  if (!recording() || transfer.begin_ns < recorded_.begin_ns) return;
  recorded_.transfers.push_back(std::move(transfer));
}

uint64_t SpanRecorder::begin(const char* thread, const char* name) {
  const ThreadSpan work{.thread = thread, .name = name, .thread_id = this_thread(), .begin_ns = now_ns()};
  sync::Lock lock(mutex_);
  under_way_.emplace(next_, work);
  return next_++;
}

void SpanRecorder::end(uint64_t number) {
  sync::Lock lock(mutex_);
  const auto found = under_way_.find(number);
  if (recording()) keep(found->second, now_ns());
  under_way_.erase(found);
}

void SpanRecorder::keep(ThreadSpan work, int64_t end_ns) {
  work.begin_ns = std::max(work.begin_ns, recorded_.begin_ns);
  work.end_ns = std::max(work.begin_ns, end_ns);
  recorded_.works.push_back(work);
}

}  // namespace titan::trace
