#pragma once

#include <deque>
#include <map>

#include "common/sync/sync.h"
#include "controller/store/listeners.h"
#include "controller/store/store.h"

namespace titan::store {

// Keeps everything in memory and commits only when told to, so that a test sees the world between a request and its
// durability. Same contract as the durable store.
class MemoryStore : public Store {
 public:
  explicit MemoryStore(int64_t keep_changes = 1 << 20) : keep_changes_(keep_changes) {}

  void commit(Transaction transaction, Committed done) override;
  int64_t revision() const override;
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const override;
  absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                           int limit) const override;
  absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return listeners_->add(std::move(listener)); }

  // Makes what is queued durable, also what the callbacks queue meanwhile. Returns the number of transactions.
  int run_pending();
  // The next queued transaction alone. False: none could be taken.
  bool run_one();
  // What was queued and is not durable is lost, as when the process dies.
  void drop_pending();
  // A full disk: refuses or keeps transactions as they ask, until there is room again.
  void set_full(bool full);

 private:
  absl::StatusOr<int64_t> apply(const Transaction& transaction);

  struct Queued {
    Transaction transaction;
    Committed done;
  };

  const int64_t keep_changes_;
  const std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();
  mutable sync::Mutex mutex_;
  std::deque<Queued> queue_ TITAN_GUARDED_BY(mutex_);
  std::map<std::string, Record> records_ TITAN_GUARDED_BY(mutex_);
  std::deque<Change> changes_ TITAN_GUARDED_BY(mutex_);
  int64_t compacted_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t revision_ TITAN_GUARDED_BY(mutex_) = 0;
  bool full_ TITAN_GUARDED_BY(mutex_) = false;
};

}  // namespace titan::store
