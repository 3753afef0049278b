#include "controller/reconcile/published.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::reconcile {

void Published::publish(const std::vector<JobViewPtr>& views, int64_t revision) {
  sync::Lock lock(mutex_);
  for (const JobViewPtr& view : views) {
    auto published = std::make_shared<JobView>(*view);
    JobViewPtr& present = by_uid_[view->record->uid];
    const bool known = present != nullptr;
    published->revision = revision != 0 ? revision : known ? present->revision : 0;
    present = published;
    if (!known) {
      uid_by_name_[view->record->name] = view->record->uid;
      uid_by_order_[view->record->order] = view->record->uid;
    }
    keep_for_watchers(std::move(published));
  }
  revision_ = std::max(revision_, revision);
}

void Published::erase(const std::string& uid, int64_t revision) {
  sync::Lock lock(mutex_);
  const auto it = by_uid_.find(uid);
  if (it == by_uid_.end()) return;
  auto last = std::make_shared<JobView>(*it->second);
  last->revision = revision;
  last->deleted = true;
  uid_by_order_.erase(last->record->order);
  uid_by_name_.erase(last->record->name);
  by_uid_.erase(it);
  keep_for_watchers(std::move(last));
  revision_ = std::max(revision_, revision);
}

void Published::keep_for_watchers(JobViewPtr view) {
  ring_.push_back(std::move(view));
  if (ring_.size() <= keep_) return;
  ring_.pop_front();
  ++ring_begin_;
}

JobViewPtr Published::find(const std::string& uid) const {
  sync::Lock lock(mutex_);
  const auto it = by_uid_.find(uid);
  return it == by_uid_.end() ? nullptr : it->second;
}

JobViewPtr Published::find_by_name(const std::string& full_name) const {
  sync::Lock lock(mutex_);
  const auto it = uid_by_name_.find(full_name);
  return it == uid_by_name_.end() ? nullptr : by_uid_.at(it->second);
}

std::vector<JobViewPtr> Published::list(int64_t order, int limit,
                                        const std::function<bool(const JobView&)>& wanted) const {
  sync::Lock lock(mutex_);
  std::vector<JobViewPtr> found;
  auto it = order == 0 ? uid_by_order_.end() : uid_by_order_.lower_bound(order);
  while (it != uid_by_order_.begin() && static_cast<int>(found.size()) < limit) {
    const JobViewPtr& view = by_uid_.at((--it)->second);
    if (wanted(*view)) found.push_back(view);
  }
  return found;
}

int64_t Published::revision() const {
  sync::Lock lock(mutex_);
  return revision_;
}

Published::Batch Published::snapshot() const {
  sync::Lock lock(mutex_);
  Batch batch;
  for (const auto& [order, uid] : uid_by_order_) batch.views.push_back(by_uid_.at(uid));
  batch.next_cursor = ring_begin_ + static_cast<int64_t>(ring_.size());
  batch.revision = revision_;
  return batch;
}

absl::StatusOr<int64_t> Published::cursor_after(int64_t revision) const {
  sync::Lock lock(mutex_);
  const bool dropped = ring_begin_ > 0 && !ring_.empty() && ring_.front()->revision > revision + 1;
  if (revision < floor_ || revision > revision_ || dropped) {
    return absl::OutOfRangeError(absl::StrCat("changes after revision ", revision,
                                              " are no longer kept; watch from revision 0 for the jobs as they are"));
  }
  // Views without a revision of their own repeat an older one, so the first newer entry decides, not the last older
  // one.
  int64_t cursor = ring_begin_;
  for (auto it = ring_.begin(); it != ring_.end() && (*it)->revision <= revision; ++it) ++cursor;
  return cursor;
}

absl::StatusOr<Published::Batch> Published::changes(int64_t cursor, int limit) const {
  sync::Lock lock(mutex_);
  if (cursor < ring_begin_) {
    return absl::OutOfRangeError("the reader fell behind and changes were dropped; watch from revision 0 again");
  }
  Batch batch;
  const int64_t end = ring_begin_ + static_cast<int64_t>(ring_.size());
  while (cursor < end && static_cast<int>(batch.views.size()) < limit) {
    batch.views.push_back(ring_[static_cast<size_t>(cursor++ - ring_begin_)]);
  }
  batch.next_cursor = cursor;
  batch.revision = cursor == end ? revision_ : batch.views.back()->revision;
  return batch;
}

void Wakers::add(std::weak_ptr<Waker> waker) {
  sync::Lock lock(mutex_);
  wakers_.push_back(std::move(waker));
}

void Wakers::wake_all() {
  std::vector<std::shared_ptr<Waker>> live;
  {
    sync::Lock lock(mutex_);
    size_t kept = 0;
    for (std::weak_ptr<Waker>& weak : wakers_) {
      if (std::shared_ptr<Waker> waker = weak.lock()) {
        live.push_back(std::move(waker));
        wakers_[kept++] = weak;
      }
    }
    wakers_.resize(kept);
  }
  for (const std::shared_ptr<Waker>& waker : live) waker->wake();
}

}  // namespace titan::reconcile
