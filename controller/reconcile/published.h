#pragma once

// What clients may see: jobs as the durable store has them. Written in log order when transactions become durable, read
// by the API.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/sync/sync.h"
#include "controller/core/view.h"

namespace titan::reconcile {

using core::JobView;
using core::JobViewPtr;

// Told that there is something new; must not block. Held weakly.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

// Who is to be woken; drops out by going away.
class Wakers {
 public:
  void add(std::weak_ptr<Waker> waker);
  void wake_all();

 private:
  sync::Mutex mutex_;
  std::vector<std::weak_ptr<Waker>> wakers_ TITAN_GUARDED_BY(mutex_);
};

class Published {
 public:
  explicit Published(int64_t revision, size_t keep_changes = 20'000)
      : floor_(revision), revision_(revision), keep_(keep_changes) {}

  // Job changes of one transaction, in log order. A view without a new revision keeps the job's own.
  void publish(const std::vector<JobViewPtr>& views, int64_t revision);
  // The job is no more; watchers see it once again, as deleted.
  void erase(const std::string& uid, int64_t revision);

  JobViewPtr find(const std::string& uid) const;
  JobViewPtr find_by_name(const std::string& full_name) const;
  // Jobs created before `order` (0: all), newest first, at most `limit` that `wanted` accepts.
  std::vector<JobViewPtr> list(int64_t order, int limit, const std::function<bool(const JobView&)>& wanted) const;
  int64_t revision() const;

  // Changes for watchers. A cursor is a place in the ring; a slow reader holds nothing but its cursor.
  struct Batch {
    std::vector<JobViewPtr> views;
    int64_t next_cursor = 0;
    int64_t revision = 0;  // Everything up to here is in this batch or an earlier one.
  };
  // All jobs and the cursor after them, at one moment.
  Batch snapshot() const;
  // The cursor after `revision`. OutOfRange when changes after it are no longer there: take a snapshot.
  absl::StatusOr<int64_t> cursor_after(int64_t revision) const;
  // OutOfRange when the reader was so slow that changes were dropped.
  absl::StatusOr<Batch> changes(int64_t cursor, int limit) const;

  // Woken after each group of transactions.
  Wakers& wakers() { return wakers_; }

 private:
  void keep_for_watchers(JobViewPtr view) TITAN_REQUIRES(mutex_);

  const int64_t floor_;  // Changes up to here happened before this process.
  mutable sync::Mutex mutex_;
  absl::flat_hash_map<std::string, JobViewPtr> by_uid_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> uid_by_name_ TITAN_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> uid_by_order_ TITAN_GUARDED_BY(mutex_);
  std::deque<JobViewPtr> ring_ TITAN_GUARDED_BY(mutex_);
  int64_t ring_begin_ TITAN_GUARDED_BY(mutex_) = 0;  // Cursor of the ring's first entry.
  int64_t revision_ TITAN_GUARDED_BY(mutex_);
  const size_t keep_;
  Wakers wakers_;
};

}  // namespace titan::reconcile
