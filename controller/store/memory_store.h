#pragma once

#include <atomic>
#include <deque>

#include "common/base/sync/sync.h"
#include "controller/store/store.h"
#include "controller/store/table.h"
#include "controller/store/writer.h"

namespace titan::store {

// Keeps everything in memory and commits only on request, so that a test sees the state between a request and its
// durability. It has the same contract as the durable stores.
class MemoryStore : public Store {
 public:
  explicit MemoryStore(int64_t keep_changes = 1 << 20) : table_(keep_changes) {}

  void commit(Transaction transaction, Committed done) override;
  QueueSize queued() const override;
  const std::string& id() const override { return id_; }
  int64_t epoch() const override { return epoch_; }
  int64_t revision() const override;
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const override;
  absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                           int limit) const override;
  absl::StatusOr<std::vector<RecordChange>> changes(int64_t after_revision, int limit) const override;
  void set_aside(const Record& record, const std::string& reason) override;
  std::vector<Quarantined> quarantined() const override;
  int64_t revision_before(absl::Time time) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return listeners_->add(std::move(listener)); }

  // Makes queued transactions durable, also those that the callbacks queue meanwhile. Returns their number.
  int run_pending();
  // Commits or refuses only the next queued transaction. Returns false if there was none.
  bool run_one();
  // Drops the queue, as when the process dies. The first `durable` transactions become durable, but no callback runs.
  void drop_pending(int durable = 0);
  // Simulates a full disk: transactions are refused or wait, as their WhenFull says, until it is no longer full.
  void set_full(bool full);
  // Sets the epoch that the next process to open the store would get.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  // Marks the last revision with a time, for revision_before().
  void mark(absl::Time time);

 private:
  absl::StatusOr<int64_t> apply(const Transaction& transaction) TITAN_REQUIRES(mutex_);

  struct Queued {
    Transaction transaction;
    Committed done;
  };

  const std::string id_ = "memory";
  std::atomic<int64_t> epoch_{1};
  const std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();
  mutable sync::Mutex mutex_;
  std::deque<Queued> queue_ TITAN_GUARDED_BY(mutex_);
  Table table_ TITAN_GUARDED_BY(mutex_);
  TimeMarks marks_ TITAN_GUARDED_BY(mutex_);
  bool full_ TITAN_GUARDED_BY(mutex_) = false;
};

}  // namespace titan::store
