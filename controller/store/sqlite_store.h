#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/sync/sync.h"
#include "controller/store/listeners.h"
#include "controller/store/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace titan::store {

struct SqliteOptions {
  int64_t keep_changes = 200'000;  // Changes that a watcher may be behind; superseded older ones are dropped.
  int group_limit = 512;           // Transactions per fsync, at most.
  absl::Duration full_retry = absl::Milliseconds(250);
  absl::Duration fold_after = absl::Seconds(2);  // Of quiet: the log goes into the database file.
  int64_t max_pages = 0;  // Not 0: the file may not grow beyond it; a full disk for tests that cannot mount one.
  // The store cannot go on (I/O or fsync error, corruption): what it has acknowledged is durable, the rest is not. The
  // process must end and start again: after a failed fsync nothing in memory can be trusted.
  std::function<void(const absl::Status&)> on_fatal;
  // After each group: transactions in it and how long it took to become durable.
  std::function<void(int transactions, absl::Duration took)> on_commit;
};

// One SQLite file in WAL mode with synchronous=FULL. One thread writes: all transactions that wait when it comes back
// from the disk share the next fsync. Rows carry a CRC over key, value and revision.
class SqliteStore : public Store {
 public:
  // Opens or creates `path`, checks it (quick_check, schema version) and takes the lock beside it.
  // Errors: FailedPrecondition when another process has it or the schema is newer; DataLoss when it is damaged.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> open(const std::string& path, SqliteOptions options = {});
  // Writes what was queued, then closes.
  ~SqliteStore() override;

  void commit(Transaction transaction, Committed done) override;
  int64_t revision() const override { return revision_.load(); }
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const override;
  absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                           int limit) const override;
  absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return listeners_->add(std::move(listener)); }

  // Random, made with the file: tells one store from another.
  const std::string& id() const { return id_; }
  // Changes max_pages; 0: no limit.
  void set_max_pages(int64_t pages) { max_pages_ = pages; }

 private:
  struct Queued {
    Transaction transaction;
    Committed done;
  };
  struct Connection;  // A database handle with its prepared statements.

  explicit SqliteStore(SqliteOptions options);
  absl::Status initialise(const std::string& path);
  absl::Status load_meta();
  void write_loop();
  void fold_log();
  std::vector<Queued> next_group();
  void write_group(std::vector<Queued> group);
  absl::Status apply_group(std::vector<Queued>& group, std::vector<absl::StatusOr<int64_t>>& results);
  absl::StatusOr<int64_t> apply(const Transaction& transaction);
  absl::Status apply_mutation(const Mutation& mutation, int64_t revision);
  absl::Status compact();
  void fail(const absl::Status& status, std::vector<Queued> group);

  const SqliteOptions options_;
  std::string id_;
  int lock_fd_ = -1;
  std::unique_ptr<Connection> writer_;  // Writing thread only.
  std::unique_ptr<Connection> reader_ TITAN_GUARDED_BY(read_mutex_);
  mutable sync::Mutex read_mutex_;
  std::atomic<int64_t> revision_{0};
  std::atomic<int64_t> max_pages_{0};
  int64_t next_revision_ = 1;  // Writing thread only, as the next two.
  int64_t last_row_ = 0;
  int64_t compacted_row_ = 0;
  std::atomic<int64_t> compacted_revision_{0};
  bool unfolded_ = false;  // Writing thread only.
  const std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();

  sync::Mutex mutex_;
  sync::Condition wake_;
  std::deque<Queued> queue_ TITAN_GUARDED_BY(mutex_);
  absl::Status failed_ TITAN_GUARDED_BY(mutex_);
  bool closing_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::store
