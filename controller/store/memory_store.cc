#include "controller/store/memory_store.h"

#include "common/base/status/status.h"
#include "controller/store/table.h"

namespace titan::store {

void MemoryStore::commit(Transaction transaction, Committed done) {
  sync::Lock lock(mutex_);
  queue_.push_back({std::move(transaction), std::move(done)});
}

QueueSize MemoryStore::queued() const {
  sync::Lock lock(mutex_);
  QueueSize size{static_cast<int64_t>(queue_.size())};
  for (const Queued& queued : queue_) {
    for (const Mutation& mutation : queued.transaction.mutations) {
      size.bytes += static_cast<int64_t>(mutation.key.size() + mutation.value.value_or("").size());
    }
  }
  return size;
}

int64_t MemoryStore::revision() const {
  sync::Lock lock(mutex_);
  return table_.revision();
}

absl::StatusOr<std::optional<Record>> MemoryStore::get(const std::string& key) const {
  sync::Lock lock(mutex_);
  return table_.get(key);
}

absl::StatusOr<std::vector<Record>> MemoryStore::scan(const std::string& prefix, const std::string& after,
                                                      int limit) const {
  sync::Lock lock(mutex_);
  return table_.scan(prefix, after, limit);
}

absl::StatusOr<std::vector<RecordChange>> MemoryStore::changes(int64_t after_revision, int limit) const {
  sync::Lock lock(mutex_);
  return table_.changes(after_revision, limit);
}

void MemoryStore::set_aside(const Record& record, const std::string& reason) {
  commit(setting_aside(record, reason, absl::UnixEpoch()), nullptr);
}

std::vector<Quarantined> MemoryStore::quarantined() const {
  sync::Lock lock(mutex_);
  return table_.quarantined();
}

int64_t MemoryStore::revision_before(absl::Time time) const {
  sync::Lock lock(mutex_);
  return marks_.before(time);
}

void MemoryStore::mark(absl::Time time) {
  sync::Lock lock(mutex_);
  marks_.add(time, table_.revision());
}

absl::StatusOr<int64_t> MemoryStore::apply(const Transaction& transaction) {
  Draft draft(table_);
  TITAN_ASSIGN_OR_RETURN(const int64_t revision, draft.add(transaction));
  table_.apply(revision, std::move(draft.taken().front()));
  return revision;
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

void MemoryStore::drop_pending(int durable) {
  sync::Lock lock(mutex_);
  for (int i = 0; i < durable && !queue_.empty(); ++i) {
    (void)apply(queue_.front().transaction);
    queue_.pop_front();
  }
  queue_.clear();
}

void MemoryStore::set_full(bool full) {
  sync::Lock lock(mutex_);
  full_ = full;
}

}  // namespace titan::store
