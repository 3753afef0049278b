#pragma once

// Jobs as clients may see them: as the durable store has them. Written in log order when transactions become durable,
// read by the API.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "controller/core/view.h"

namespace titan::reconcile {

using core::JobView;
using core::JobViewPtr;

// Is notified of changes. wake() must not block.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

// Wakers, held weakly: a destroyed one drops out.
class Wakers {
 public:
  void add(std::weak_ptr<Waker> waker);
  void wake_all();

 private:
  sync::Mutex mutex_;
  std::vector<std::weak_ptr<Waker>> wakers_ TITAN_GUARDED_BY(mutex_);
};

// A published view. Its encoded bytes are made once, when they are first needed, and shared by all readers.
struct PublishedView : JobView {
  explicit PublishedView(const JobView& view) : JobView(view) {}
  template <typename Make>
  const std::string& bytes(const Make& make) const {
    std::call_once(made_, [&] { bytes_ = make(*this); });
    return bytes_;
  }

 private:
  mutable std::once_flag made_;
  mutable std::string bytes_;
};
using PublishedViewPtr = std::shared_ptr<const PublishedView>;

// Approximate memory of a view and its encoded bytes. Ended attempts are shared with other views.
size_t approximate_bytes(const JobView& view);

class Published {
 public:
  struct Limits {
    size_t changes = 20'000;  // Changes kept for watchers.
    size_t bytes = 64 << 20;  // Approximate bytes of these changes. The limit that is reached first applies.
  };
  explicit Published(int64_t revision) : Published(revision, Limits()) {}
  Published(int64_t revision, Limits limits) : floor_(revision), revision_(revision), limits_(limits) {}

  // Adds a job as the store had it when this process started. Watchers do not see it as a change.
  void load(const JobViewPtr& view);
  // Publishes the job changes of one transaction, in log order. `revision` 0: each view keeps its job's present
  // revision.
  void publish(const std::vector<JobViewPtr>& views, int64_t revision);
  // Removes a deleted job. Watchers see it once more, as deleted.
  void erase(const std::string& uid, int64_t revision);

  JobViewPtr find(const std::string& uid) const;
  JobViewPtr find_by_name(const std::string& full_name) const;
  // Returns jobs created before `order` (0: all), newest first: at most `limit` that `wanted` accepts.
  std::vector<JobViewPtr> list(int64_t order, int limit, const std::function<bool(const JobView&)>& wanted) const;
  int64_t revision() const;

  // Changes for watchers. A cursor is a place in the ring. A slow reader holds nothing but its cursor.
  struct Batch {
    std::vector<PublishedViewPtr> views;
    std::vector<int64_t> cursors;  // Place of each change.
    int64_t next_cursor = 0;
    int64_t revision = 0;  // Everything up to this revision is in this batch or an earlier one.
  };
  // Returns the present views of jobs with an order above `after_order`, oldest first, at most `limit`, and the cursor
  // after all changes so far. All are from one moment.
  Batch page(int64_t after_order, int limit) const;
  // Does the same for the job of this name. No view: there is no such job.
  Batch look(const std::string& full_name) const;
  // Visits every job, oldest first, in pages, so not all are from one moment.
  void each(const std::function<void(const JobView&)>& visit) const;
  // Returns the cursor after `revision`. Errors: OutOfRange if changes after it are no longer kept, or if it is newer
  // than revision(). Read the jobs with page() then.
  absl::StatusOr<int64_t> cursor_after(int64_t revision) const;
  // Returns at most `limit` changes, beginning at `cursor`. Errors: OutOfRange if the reader was so slow that changes
  // were dropped.
  absl::StatusOr<Batch> changes(int64_t cursor, int limit) const;
  // Does the same for one job. Other jobs cost nothing, and their dropped changes do not matter.
  absl::StatusOr<Batch> changes_of(const std::string& full_name, int64_t cursor, int limit) const;
  // Returns the cursor after all changes.
  int64_t end() const;

  // Woken after each group of transactions.
  Wakers& wakers() { return wakers_; }

 private:
  struct Change {
    PublishedViewPtr shown;
    int64_t previous = -1;  // Cursor of the previous change of the same name. -1: none since this process started.
    int64_t revision = 0;   // Log revision at publication. It grows, even if the view repeats an older revision.
    size_t bytes = 0;
  };

  PublishedViewPtr show(const JobView& view, int64_t revision) TITAN_REQUIRES(mutex_);
  void keep_for_watchers(PublishedViewPtr shown) TITAN_REQUIRES(mutex_);
  int64_t ring_end() const TITAN_REQUIRES(mutex_) { return ring_begin_ + static_cast<int64_t>(ring_.size()); }
  const Change& change(int64_t cursor) const TITAN_REQUIRES(mutex_) {
    return ring_[static_cast<size_t>(cursor - ring_begin_)];
  }

  const int64_t floor_;  // Changes up to this revision happened before this process.
  mutable sync::Mutex mutex_;
  absl::flat_hash_map<std::string, PublishedViewPtr> by_uid_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> uid_by_name_ TITAN_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> uid_by_order_ TITAN_GUARDED_BY(mutex_);
  std::deque<Change> ring_ TITAN_GUARDED_BY(mutex_);
  size_t ring_bytes_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t ring_begin_ TITAN_GUARDED_BY(mutex_) = 0;  // Cursor of the ring's first entry.
  int64_t dropped_ TITAN_GUARDED_BY(mutex_) = 0;     // Revision of the last change that is no longer in the ring.
  // Cursor of the last change by name. A deleted job has one until that change is dropped.
  absl::flat_hash_map<std::string, int64_t> last_change_ TITAN_GUARDED_BY(mutex_);
  int64_t revision_ TITAN_GUARDED_BY(mutex_);
  const Limits limits_;
  Wakers wakers_;
};

}  // namespace titan::reconcile
