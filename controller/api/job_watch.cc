#include "controller/api/job_watch.h"

#include <algorithm>
#include <limits>

#include "controller/api/shared_slice.h"

namespace titan::api {
namespace {

constexpr int kWatchBatch = 64;
constexpr int kTicksToBookmark = 50;  // Ticks of 200 ms.

std::string job_bytes(const reconcile::JobView& view) {
  v1::JobChange change;
  *change.mutable_job() = api::to_proto(view);
  return change.SerializeAsString();
}

}  // namespace

struct JobWatch::Bookmarks : reconcile::Waker {
  explicit Bookmarks(JobWatch& owner) : watch(owner.weak_from_this()) {}
  void wake() override {
    if (const auto owner = watch.lock()) static_cast<JobWatch&>(*owner).tick();
  }
  std::weak_ptr<Stream<grpc::ByteBuffer>> watch;
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

// Writes a message in two parts, which a parser merges: this reader's own fields, and the job that all readers share.
void JobWatch::add_change(v1::JobChange::Kind kind, const reconcile::PublishedViewPtr& view, int64_t revision) {
  v1::JobChange own;
  own.set_kind(kind);
  own.set_revision(revision);
  std::vector<grpc::Slice> parts = {grpc::Slice(own.SerializeAsString())};
  if (view != nullptr) parts.push_back(shared_slice(view, view->bytes(job_bytes)));
  add(grpc::ByteBuffer(parts.data(), parts.size()));
  quiet_ticks_ = 0;
  bookmark_due_ = false;
}

// Returns false when the watch ended.
bool JobWatch::begin_watch() {
  if (from_ > 0) {
    const absl::StatusOr<int64_t> cursor = published_.cursor_after(from_);
    if (!cursor.ok()) return end(cursor.status()), false;
    cursor_ = *cursor;
    revision_ = from_;
    return true;
  }
  if (name_.empty()) {
    in_snapshot_ = true;
    cursor_ = published_.end();
    revision_ = published_.revision();
    return true;
  }
  add_job();
  return !ending();
}

void JobWatch::add_job() {
  const reconcile::Published::Batch found = published_.look(name_);
  if (found.views.empty()) return end(reconcile::no_such_job(name_));
  cursor_ = found.next_cursor;
  revision_ = found.revision;
  add_change(v1::JobChange::SNAPSHOT, found.views[0], found.views[0]->revision);
  add_change(v1::JobChange::SNAPSHOT_END, nullptr, revision_);
}

// Adds a page, skipping those of which the caller may see nothing.
void JobWatch::add_page() {
  while (!add_page_of_seen()) {
  }
}

// Adds a page. Jobs change between two pages: the changes since the first page follow the last one, except those that a
// page already shows. Returns whether there is anything to write.
bool JobWatch::add_page_of_seen() {
  const int64_t after = pages_.empty() ? 0 : pages_.back().last_order;
  const reconcile::Published::Batch page = published_.page(after, kWatchBatch);
  bool added = false;
  for (const reconcile::PublishedViewPtr& view : page.views) {
    if (!caller_.sees(view->record->spec.project)) continue;
    add_change(v1::JobChange::SNAPSHOT, view, view->revision);
    added = true;
  }
  in_snapshot_ = static_cast<int>(page.views.size()) == kWatchBatch;
  pages_.push_back(
      {in_snapshot_ ? page.views.back()->record->order : std::numeric_limits<int64_t>::max(), page.next_cursor});
  if (!in_snapshot_) add_change(v1::JobChange::SNAPSHOT_END, nullptr, revision_);
  return added || !in_snapshot_;
}

bool JobWatch::was_in_snapshot(const reconcile::JobView& view, int64_t cursor) const {
  if (pages_.empty()) return false;
  const auto page = std::lower_bound(pages_.begin(), pages_.end(), view.record->order,
                                     [](const Page& one, int64_t order) { return one.last_order < order; });
  return cursor < page->cursor;
}

// Returns true when there were changes or the watch has ended.
bool JobWatch::add_changes() {
  bool added = false;
  while (!added) {
    const absl::StatusOr<reconcile::Published::Batch> batch =
        name_.empty() ? published_.changes(cursor_, kWatchBatch) : published_.changes_of(name_, cursor_, kWatchBatch);
    if (!batch.ok()) return end(batch.status()), true;
    cursor_ = batch->next_cursor;
    revision_ = std::max(revision_, batch->revision);
    for (size_t i = 0; i < batch->views.size(); ++i) {
      const reconcile::PublishedViewPtr& view = batch->views[i];
      if (!caller_.sees(view->record->spec.project) || was_in_snapshot(*view, batch->cursors[i])) continue;
      add_change(view->deleted ? v1::JobChange::DELETED : v1::JobChange::CHANGED, view, view->revision);
      added = true;
      if (view->deleted && !name_.empty()) return end(absl::OkStatus()), true;
    }
    if (!pages_.empty() && cursor_ >= pages_.back().cursor) pages_.clear();
    if (batch->views.empty()) break;
  }
  return added;
}

void JobWatch::refill() {
  if (cursor_ < 0) {
    if (!begin_watch()) return;
    if (!name_.empty() && from_ == 0) return;  // The snapshot is enough to write for now.
  }
  if (in_snapshot_) return add_page();
  if (!add_changes() && bookmark_due_) add_change(v1::JobChange::BOOKMARK, nullptr, revision_);
}

}  // namespace titan::api
