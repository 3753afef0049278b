#include "controller/api/job_watch.h"

namespace titan::api {
namespace {

constexpr int kWatchBatch = 64;
constexpr int kTicksToBookmark = 50;  // Of 200 ms.

}  // namespace

struct JobWatch::Bookmarks : reconcile::Waker {
  explicit Bookmarks(JobWatch& owner) : watch(owner.weak_from_this()) {}
  void wake() override {
    if (const auto owner = watch.lock()) static_cast<JobWatch&>(*owner).tick();
  }
  std::weak_ptr<Stream<v1::JobChange>> watch;
};

std::shared_ptr<reconcile::Waker> JobWatch::bookmarks() {
  bookmarks_ = std::make_shared<Bookmarks>(*this);
  return bookmarks_;
}

void JobWatch::tick() {
  {
    sync::Lock lock(mutex_);
    if (++quiet_ticks_ < kTicksToBookmark) return;
    bookmark_due_ = true;
  }
  wake();
}

void JobWatch::add_change(v1::JobChange::Kind kind, const reconcile::JobViewPtr& view, int64_t revision) {
  v1::JobChange change;
  change.set_kind(kind);
  if (view != nullptr) *change.mutable_job() = to_proto(*view);
  change.set_revision(revision);
  add(std::move(change));
  quiet_ticks_ = 0;
  bookmark_due_ = false;
}

// Where the watch begins; false when it ended there.
bool JobWatch::first() {
  if (from_ > 0) {
    const absl::StatusOr<int64_t> cursor = published_.cursor_after(from_);
    if (!cursor.ok()) return end(cursor.status()), false;
    cursor_ = *cursor;
    revision_ = from_;
    return true;
  }
  const reconcile::Published::Batch all = published_.snapshot();
  bool found = name_.empty();
  for (const reconcile::JobViewPtr& view : all.views) {
    if (!name_.empty() && view->record->name != name_) continue;
    found = true;
    add_change(v1::JobChange::SNAPSHOT, view, view->revision);
  }
  if (!found) {
    end(reconcile::no_such_job(name_));
    return false;
  }
  cursor_ = all.next_cursor;
  revision_ = all.revision;
  add_change(v1::JobChange::SNAPSHOT_END, nullptr, revision_);
  return false;  // There is enough to write for now.
}

void JobWatch::refill() {
  if (cursor_ < 0 && !first()) return;
  bool added = false;
  while (!added) {
    const absl::StatusOr<reconcile::Published::Batch> batch = published_.changes(cursor_, kWatchBatch);
    if (!batch.ok()) return end(batch.status());
    cursor_ = batch->next_cursor;
    revision_ = std::max(revision_, batch->revision);
    for (const reconcile::JobViewPtr& view : batch->views) {
      if (!name_.empty() && view->record->name != name_) continue;
      add_change(view->deleted ? v1::JobChange::DELETED : v1::JobChange::CHANGED, view, view->revision);
      added = true;
      if (view->deleted && !name_.empty()) return end(absl::OkStatus());
    }
    if (batch->views.empty()) break;
  }
  if (!added && bookmark_due_) add_change(v1::JobChange::BOOKMARK, nullptr, revision_);
}

}  // namespace titan::api
