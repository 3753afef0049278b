#include "controller/store/memory_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::store {

void MemoryStore::commit(Transaction transaction, Committed done) {
  sync::Lock lock(mutex_);
  queue_.push_back({std::move(transaction), std::move(done)});
}

int64_t MemoryStore::revision() const {
  sync::Lock lock(mutex_);
  return revision_;
}

absl::StatusOr<std::optional<Record>> MemoryStore::get(const std::string& key) const {
  sync::Lock lock(mutex_);
  const auto it = records_.find(key);
  return it == records_.end() ? std::nullopt : std::make_optional(it->second);
}

absl::StatusOr<std::vector<Record>> MemoryStore::scan(const std::string& prefix, const std::string& after,
                                                      int limit) const {
  sync::Lock lock(mutex_);
  std::vector<Record> found;
  auto it = after < prefix ? records_.lower_bound(prefix) : records_.upper_bound(after);
  for (; it != records_.end() && static_cast<int>(found.size()) < limit && absl::StartsWith(it->first, prefix); ++it) {
    found.push_back(it->second);
  }
  return found;
}

absl::StatusOr<std::vector<Change>> MemoryStore::changes(int64_t after_revision, int limit) const {
  sync::Lock lock(mutex_);
  if (after_revision < compacted_) {
    return absl::OutOfRangeError(
        absl::StrCat("revision ", after_revision, " was compacted; the oldest is ", compacted_));
  }
  std::vector<Change> found;
  for (const Change& change : changes_) {
    if (change.revision <= after_revision) continue;
    if (static_cast<int>(found.size()) >= limit && change.revision != found.back().revision) break;
    found.push_back(change);
  }
  return found;
}

absl::StatusOr<int64_t> MemoryStore::apply(const Transaction& transaction) {
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.expected_revision) continue;
    const auto it = records_.find(mutation.key);
    const int64_t current = it == records_.end() ? 0 : it->second.revision;
    if (current != *mutation.expected_revision) {
      return absl::AbortedError(
          absl::StrCat(mutation.key, " is at revision ", current, ", not ", *mutation.expected_revision));
    }
  }
  ++revision_;
  for (const Mutation& mutation : transaction.mutations) {
    if (mutation.value) {
      records_[mutation.key] = {mutation.key, *mutation.value, revision_};
    } else {
      records_.erase(mutation.key);
    }
    changes_.push_back({revision_, mutation.key, mutation.value});
  }
  while (static_cast<int64_t>(changes_.size()) > keep_changes_) {
    compacted_ = changes_.front().revision;
    changes_.pop_front();
  }
  return revision_;
}

bool MemoryStore::run_one() {
  Queued next;
  absl::StatusOr<int64_t> result;
  {
    sync::Lock lock(mutex_);
    auto it = queue_.begin();
    while (full_ && it != queue_.end() && it->transaction.when_full == WhenFull::kRetry) ++it;
    if (it == queue_.end()) return false;
    next = std::move(*it);
    queue_.erase(it);
    result = full_ ? absl::ResourceExhaustedError("the store's disk is full") : apply(next.transaction);
  }
  if (next.done) next.done(result);
  listeners_->announce(revision());
  return true;
}

int MemoryStore::run_pending() {
  int count = 0;
  while (run_one()) ++count;
  return count;
}

void MemoryStore::drop_pending() {
  sync::Lock lock(mutex_);
  queue_.clear();
}

void MemoryStore::set_full(bool full) {
  sync::Lock lock(mutex_);
  full_ = full;
}

}  // namespace titan::store
