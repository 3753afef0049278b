#pragma once

// std::mutex with thread-safety annotations: clang checks them, GCC ignores them, and TSan sees the locks.

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TITAN_ANNOTATE(x) __attribute__((x))
#else
#define TITAN_ANNOTATE(x)
#endif

#define TITAN_GUARDED_BY(m) TITAN_ANNOTATE(guarded_by(m))
#define TITAN_REQUIRES(m) TITAN_ANNOTATE(requires_capability(m))
#define TITAN_EXCLUDES(m) TITAN_ANNOTATE(locks_excluded(m))

namespace titan::sync {

class TITAN_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() TITAN_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() TITAN_ANNOTATE(release_capability()) { mutex_.unlock(); }
  bool try_lock() TITAN_ANNOTATE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class TITAN_ANNOTATE(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) TITAN_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() TITAN_ANNOTATE(release_capability()) { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// Condition variable for Mutex, which the waiting caller holds.
using Condition = std::condition_variable_any;

}  // namespace titan::sync
