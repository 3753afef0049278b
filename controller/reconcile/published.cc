#include "controller/reconcile/published.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::reconcile {
namespace {

absl::Status fell_behind() {
  return absl::OutOfRangeError("the reader fell behind and changes were dropped; watch from revision 0 again");
}

}  // namespace

size_t approximate_bytes(const JobView& view) {
  size_t bytes = 2048;
  if (!view.attempts.empty()) {
    bytes += 160 * view.attempts.back()->placements.size() + 400 * view.attempts.back()->exits.size();
  }
  return bytes;
}

PublishedViewPtr Published::show(const JobView& view, int64_t revision) {
  auto shown = std::make_shared<PublishedView>(view);
  PublishedViewPtr& present = by_uid_[view.record->uid];
  const bool known = present != nullptr;
  shown->revision = revision != 0 ? revision : known ? present->revision : 0;
  present = shown;
  if (!known) {
    uid_by_name_[view.record->name] = view.record->uid;
    uid_by_order_[view.record->order] = view.record->uid;
  }
  return shown;
}

void Published::load(const JobViewPtr& view) {
  sync::Lock lock(mutex_);
  show(*view, view->revision);
}

void Published::publish(const std::vector<JobViewPtr>& views, int64_t revision) {
  sync::Lock lock(mutex_);
  revision_ = std::max(revision_, revision);
  for (const JobViewPtr& view : views) keep_for_watchers(show(*view, revision));
}

void Published::erase(const std::string& uid, int64_t revision) {
  sync::Lock lock(mutex_);
  const auto it = by_uid_.find(uid);
  if (it == by_uid_.end()) return;
  auto last = std::make_shared<PublishedView>(static_cast<const JobView&>(*it->second));
  last->revision = revision;
  last->deleted = true;
  uid_by_order_.erase(last->record->order);
  uid_by_name_.erase(last->record->name);
  by_uid_.erase(it);
  revision_ = std::max(revision_, revision);
  keep_for_watchers(std::move(last));
}

void Published::keep_for_watchers(PublishedViewPtr shown) {
  const auto last = last_change_.try_emplace(shown->record->name, -1).first;
  const size_t bytes = approximate_bytes(*shown);
  ring_.push_back({std::move(shown), std::exchange(last->second, ring_end()), revision_, bytes});
  ring_bytes_ += bytes;
  // The newest change is always kept.
  while (ring_.size() > 1 && (ring_.size() > limits_.changes || ring_bytes_ > limits_.bytes)) {
    const Change& first = ring_.front();
    const std::string& name = first.shown->record->name;
    const auto of_job = last_change_.find(name);
    if (first.shown->deleted && of_job != last_change_.end() && of_job->second == ring_begin_)
      last_change_.erase(of_job);
    dropped_ = first.revision;
    ring_bytes_ -= first.bytes;
    ring_.pop_front();
    ++ring_begin_;
  }
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

int64_t Published::end() const {
  sync::Lock lock(mutex_);
  return ring_end();
}

Published::Batch Published::page(int64_t after_order, int limit) const {
  sync::Lock lock(mutex_);
  Batch batch;
  for (auto it = uid_by_order_.upper_bound(after_order);
       it != uid_by_order_.end() && static_cast<int>(batch.views.size()) < limit; ++it) {
    batch.views.push_back(by_uid_.at(it->second));
  }
  batch.next_cursor = ring_end();
  batch.revision = revision_;
  return batch;
}

void Published::each(const std::function<void(const JobView&)>& visit) const {
  constexpr int kPage = 1000;
  int64_t last = 0;
  while (true) {
    const Batch batch = page(last, kPage);
    for (const PublishedViewPtr& view : batch.views) visit(*view);
    if (batch.views.size() < kPage) return;
    last = batch.views.back()->record->order;
  }
}

Published::Batch Published::look(const std::string& full_name) const {
  sync::Lock lock(mutex_);
  Batch batch;
  const auto it = uid_by_name_.find(full_name);
  if (it != uid_by_name_.end()) batch.views.push_back(by_uid_.at(it->second));
  batch.next_cursor = ring_end();
  batch.revision = revision_;
  return batch;
}

absl::StatusOr<int64_t> Published::cursor_after(int64_t revision) const {
  sync::Lock lock(mutex_);
  if (revision < floor_ || revision > revision_ || dropped_ > revision) {
    return absl::OutOfRangeError(absl::StrCat("changes after revision ", revision,
                                              " are no longer kept; watch from revision 0 for the jobs as they are"));
  }
  const auto first = std::partition_point(ring_.begin(), ring_.end(),
                                          [&](const Change& change) { return change.revision <= revision; });
  return ring_begin_ + (first - ring_.begin());
}

absl::StatusOr<Published::Batch> Published::changes(int64_t cursor, int limit) const {
  sync::Lock lock(mutex_);
  if (cursor < ring_begin_) return fell_behind();
  Batch batch;
  while (cursor < ring_end() && static_cast<int>(batch.views.size()) < limit) {
    batch.cursors.push_back(cursor);
    batch.views.push_back(change(cursor++).shown);
  }
  batch.next_cursor = cursor;
  batch.revision = cursor == ring_end() ? revision_ : change(cursor - 1).revision;
  return batch;
}

absl::StatusOr<Published::Batch> Published::changes_of(const std::string& full_name, int64_t cursor, int limit) const {
  sync::Lock lock(mutex_);
  Batch batch;
  batch.next_cursor = ring_end();
  batch.revision = revision_;
  const auto last = last_change_.find(full_name);
  if (last == last_change_.end()) {
    // It has not changed since this process started, or its deletion was dropped.
    if (cursor < ring_begin_ && !uid_by_name_.contains(full_name)) return fell_behind();
    return batch;
  }
  std::vector<int64_t> found;  // Newest first.
  for (int64_t at = last->second; at >= cursor; at = change(at).previous) {
    if (at < ring_begin_) return fell_behind();
    found.push_back(at);
  }
  if (static_cast<int>(found.size()) > limit) {
    found.erase(found.begin(), found.end() - limit);
    batch.next_cursor = found.front() + 1;
    batch.revision = change(found.front()).revision;
  }
  for (auto at = found.rbegin(); at != found.rend(); ++at) {
    batch.cursors.push_back(*at);
    batch.views.push_back(change(*at).shown);
  }
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
