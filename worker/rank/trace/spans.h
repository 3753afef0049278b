#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::trace {

int64_t now_ns();  // Nanoseconds since the epoch, the time base of profilers.

// A collective or message, from its issue until its result was there.
struct Transfer {
  const char* operation = "";  // A string literal: "all_gather".
  std::string axis;            // "fsdp"
  int ranks = 0;
  int64_t bytes = 0;
  int64_t begin_ns = 0;   // The issue began.
  int64_t issued_ns = 0;  // The issue returned.
  int64_t wait_ns = 0;    // The wait began.
  int64_t waited_ns = 0;  // The wait returned.
  int64_t end_ns = 0;     // The result was there, at the latest at waited_ns.
};

// A section of one thread's work. Both texts are string literals.
struct ThreadSpan {
  const char* thread = "";
  const char* name = "";
  int64_t thread_id = 0;  // The system's thread id.
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct RecordedSpans {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t thread_id = 0;  // The recording thread.
  std::vector<Transfer> transfers;
  std::vector<ThreadSpan> works;
};

// Records what one rank does outside its main thread: collectives in flight, and the work of threads that read data
// and write checkpoints. A profiler cannot record the latter without a race (runtime/profiling/tracer.h). Here each
// thread adds its finished work under a lock, and stop() takes it under the same lock, so a recording may stop at any
// point of a thread's work. Thread-safe.
class SpanRecorder {
 public:
  // Returns whether a transfer should be described. Only a hint: with an old value the caller adds a transfer that is
  // not kept, or none.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  // Starts a recording and discards the previous one.
  void start();
  // Stops the recording. Unfinished work is included up to now; transfers in flight are not.
  RecordedSpans stop();

  void add(Transfer transfer);

 private:
  friend class ThreadSpanScope;
  uint64_t begin(const char* thread, const char* name);
  void end(uint64_t number);
  void keep(ThreadSpan work, int64_t end_ns) TITAN_REQUIRES(mutex_);

  std::atomic<bool> recording_{false};
  sync::Mutex mutex_;
  RecordedSpans recorded_ TITAN_GUARDED_BY(mutex_);
  uint64_t next_ TITAN_GUARDED_BY(mutex_) = 0;
  // Tracked at all times, so that a recording that starts in the middle of it shows the rest.
  std::map<uint64_t, ThreadSpan> under_way_ TITAN_GUARDED_BY(mutex_);
};

// Marks a section of the calling thread's work, such as the work for one batch or file. Costs a lock and a clock
// reading at both ends, whether or not a recording runs. Both texts must be string literals. `spans` must outlive it;
// if null, it does nothing.
class ThreadSpanScope {
 public:
  ThreadSpanScope(SpanRecorder* spans, const char* thread, const char* name)
      : spans_(spans), number_(spans != nullptr ? spans->begin(thread, name) : 0) {}
  ~ThreadSpanScope() {
    if (spans_ != nullptr) spans_->end(number_);
  }
  ThreadSpanScope(const ThreadSpanScope&) = delete;
  ThreadSpanScope& operator=(const ThreadSpanScope&) = delete;

 private:
  SpanRecorder* const spans_;
  const uint64_t number_;
};

}  // namespace titan::trace
