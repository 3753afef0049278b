#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::trace {

int64_t now_ns();  // Since the epoch, as profilers count.

// A collective or message from its issue until its result was there.
struct Transfer {
  const char* operation = "";  // A literal: "all_gather".
  std::string axis;            // "fsdp"
  int ranks = 0;
  int64_t bytes = 0;
  int64_t begin_ns = 0;   // Its issue began,
  int64_t issued_ns = 0;  // and returned.
  int64_t wait_ns = 0;    // Somebody began to wait for it,
  int64_t waited_ns = 0;  // and had it.
  int64_t end_ns = 0;     // Its result was there: at waited_ns the latest.
};

// A stretch of one thread's work. Both texts are literals.
struct Work {
  const char* thread = "";
  const char* name = "";
  int64_t thread_id = 0;  // The system's.
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct Recorded {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t thread_id = 0;  // Who recorded.
  std::vector<Transfer> transfers;
  std::vector<Work> works;
};

// What one rank does beside its own thread: collectives under way, and the work of threads that read data and write
// checkpoints. A profiler cannot see the latter without a race (runtime/profiling/tracer.h); here each thread adds what
// it has done under one lock, and who stops takes what is there under the same one, so a thread may be anywhere in its
// work when the recording stops. Thread-safe.
class Spans {
 public:
  // Whether a transfer is worth describing. A hint: who reads an old value adds what is not kept, or adds nothing.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  // From now on; what was kept before is forgotten.
  void start();
  // Work that goes on is in it up to now; transfers under way are not.
  Recorded stop();

  void add(Transfer transfer);

 private:
  friend class WorkScope;
  uint64_t begin(const char* thread, const char* name);
  void end(uint64_t number);
  void keep(Work work, int64_t end_ns) TITAN_REQUIRES(mutex_);

  std::atomic<bool> recording_{false};
  sync::Mutex mutex_;
  Recorded recorded_ TITAN_GUARDED_BY(mutex_);
  uint64_t next_ TITAN_GUARDED_BY(mutex_) = 0;
  // Known at all times: a recording that starts in the middle of it shows the rest.
  std::map<uint64_t, Work> under_way_ TITAN_GUARDED_BY(mutex_);
};

// The calling thread does something of its own, for a batch or a file: a lock and a look at the clock at both ends,
// whether or not somebody records. Both texts must be literals; `spans` outlives it, or is null and nothing happens.
class WorkScope {
 public:
  WorkScope(Spans* spans, const char* thread, const char* name)
      : spans_(spans), number_(spans != nullptr ? spans->begin(thread, name) : 0) {}
  ~WorkScope() {
    if (spans_ != nullptr) spans_->end(number_);
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Spans* const spans_;
  const uint64_t number_;
};

}  // namespace titan::trace
