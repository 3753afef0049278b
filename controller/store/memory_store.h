#pragma once

#include <atomic>
#include <deque>

#include "common/base/sync/sync.h"
#include "controller/store/store.h"
#include "controller/store/table.h"
#include "controller/store/writer.h"

namespace titan::store {

// Keeps everything in memory and commits only when told to, so that a test sees the world between a request and its
// durability. Same contract as the durable store.
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
  absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const override;
  void set_aside(const Record& record, const std::string& reason) override;
  std::vector<Quarantined> quarantined() const override;
  int64_t revision_before(absl::Time time) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return listeners_->add(std::move(listener)); }

  // Makes what is queued durable, also what the callbacks queue meanwhile. Returns the number of transactions.
  int run_pending();
  // The next queued transaction alone. False: none could be taken.
  bool run_one();
  // What was queued and is not durable is lost, as when the process dies; the first `durable` of it have become so,
  // and nobody heard.
  void drop_pending(int durable = 0);
  // A full disk: refuses or keeps transactions as they ask, until there is room again.
  void set_full(bool full);
  // As a process that opens it anew would find it.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  // The last revision at a time, for revision_before().
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
