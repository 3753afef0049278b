#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/storage/folder_guard.h"
#include "controller/store/backup.h"
#include "controller/store/rows.h"
#include "controller/store/store.h"
#include "controller/store/table.h"
#include "controller/store/writer.h"

namespace titan::store {

struct SqliteOptions {
  int64_t keep_changes = 200'000;  // Changes that a watcher may be behind; superseded older ones are dropped.
  int group_limit = 512;           // Transactions per fsync, at most.
  int64_t queue_limit = 65'536;    // Transactions and bytes that wait, beyond which clients are refused.
  int64_t queue_bytes = 256 << 20;
  absl::Duration full_retry = absl::Milliseconds(250);
  absl::Duration fold_after = absl::Seconds(2);   // Of quiet: the log goes into the database file.
  absl::Duration check_after = absl::Minutes(1);  // Of serving: the whole file is read and checked, then once a day.
  int64_t max_pages = 0;  // Not 0: the file may not grow beyond it; a full disk for tests that cannot mount one.
  std::string vfs;        // SQLite's file system; empty: the system's. For tests.
  // The store cannot go on (I/O or fsync error, corruption, a file that was deleted or replaced; the last is said with
  // where what was acknowledged is): what it has acknowledged is durable, the rest is not known. The process must end
  // and start again: after a failed fsync nothing in memory can be trusted.
  std::function<void(const absl::Status&)> on_fatal;
  // After each group: transactions in it and how long it took to become durable.
  std::function<void(int transactions, absl::Duration took)> on_commit;
  // For each record that was found damaged, once.
  std::function<void(const Quarantined&)> on_damage;
};

// What a reading of the whole file found.
struct CheckReport {
  int64_t rows = 0;     // Of the log.
  int64_t damaged = 0;  // Of them; they are set aside.
  std::string file;     // What is wrong with the file's pages or heads; empty: nothing.
};

// One SQLite file in WAL mode with synchronous=FULL. One thread writes: all transactions that wait when it comes back
// from the disk share the next fsync. Rows carry a CRC over key, value and revision, heads one over key and row. A
// record that does not match is set aside with the reason, and everything else is served.
class SqliteStore : public Store {
 public:
  // Opens or creates `path`, brings an older schema forward, checks the heads (what else is damaged is found when it is
  // read, or by check()) and takes the lock beside it.
  // Errors: FailedPrecondition when another process has it or the schema is newer; DataLoss when it is damaged in a way
  // that leaves unknown what was there.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> open(const std::string& path, SqliteOptions options = {});
  // Writes what was queued, then closes.
  ~SqliteStore() override;

  void commit(Transaction transaction, Committed done) override {
    writer_->commit(std::move(transaction), std::move(done));
  }
  QueueSize queued() const override { return writer_->queued(); }
  int64_t revision() const override { return revision_.load(); }
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const override;
  absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                           int limit) const override;
  absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const override;
  void set_aside(const Record& record, const std::string& reason) override;
  std::vector<Quarantined> quarantined() const override;
  int64_t revision_before(absl::Time time) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return writer_->subscribe(std::move(listener)); }

  // Random, made with the file: tells one store from another.
  const std::string& id() const override { return id_; }
  int64_t epoch() const override { return epoch_; }
  // Changes max_pages; 0: no limit.
  void set_max_pages(int64_t pages) { max_pages_ = pages; }

  // Reads the whole file: pages, heads and every row, while the store serves. What is damaged is set aside soon after.
  // Errors: Cancelled when the store closes; those of the disk.
  absl::StatusOr<CheckReport> check() const;
  // Drops every change that is no record's present (watchers that are behind get OutOfRange) and gives the room back to
  // the file system, in steps between which others write. Blocks; not on the store's thread.
  absl::Status shrink();
  // copy_store() of this store, after a check() when a record turns out to be damaged.
  absl::StatusOr<StoreInfo> back_up(const std::string& copy) const;
  // image_of() this store: needs neither its file's name nor space on a disk.
  absl::StatusOr<StoreImage> image() const;
  // Ends the store (on_fatal) when its file, or one that belongs to it, is no longer what lies under its name: what
  // comes would go where nobody finds it. Every group of transactions is checked too, before it is acknowledged.
  void check_files();

 private:
  struct Connection;  // A database handle with its prepared statements.
  struct Loaded;      // A live row, or why there is none.

  explicit SqliteStore(SqliteOptions options);
  absl::Status initialise();
  absl::Status make_schema();
  absl::Status check_heads();
  absl::Status load_aside();
  absl::Status lost_files() const;
  std::string rescue();
  absl::Status set_lost_aside(const std::vector<Quarantined>& lost);
  absl::Status load_marks();

  absl::Status apply_group(const Writer::Group& group, std::vector<absl::StatusOr<int64_t>>& results);
  absl::StatusOr<int64_t> apply(const Transaction& transaction);
  absl::Status apply_mutation(const Mutation& mutation, int64_t revision);
  absl::Status erase_prefix(const std::string& prefix, int64_t revision);
  absl::Status note_written(const std::string& key);
  void forget_lost();
  absl::Status erase_row(const std::string& key, const Head& head, int64_t revision);
  // Runs `changes` as one transaction of the file; what they did to the state is undone with it.
  absl::Status in_transaction(const std::function<absl::Status()>& changes);
  absl::Status save_state();
  absl::Status mark_time();
  absl::Status compact(int64_t keep);
  absl::StatusOr<int64_t> pragma(const char* query);
  absl::Status fold_log();
  void idle();

  Loaded load(Connection& connection, const Head& head) const;
  absl::StatusOr<std::vector<Change>> read_changes(int64_t after_revision, int limit) const;
  void found_damaged(const std::string& key, int64_t row, const std::string& reason) const;
  bool note_aside(const Quarantined& damaged, bool told) const;
  void forget_aside(const Quarantined& damaged);
  absl::Status move_aside(Quarantined damaged);
  absl::Status bury_row(const std::string& key, int64_t row);
  absl::Status keep_aside(Quarantined damaged);
  absl::Status examine(int64_t row);
  absl::StatusOr<std::string> owner_of(int64_t row);
  void check_loop();
  absl::Status run(const std::function<absl::Status()>& task);

  const SqliteOptions options_;
  std::string path_;
  std::string id_;
  std::atomic<int64_t> epoch_{0};
  int lock_fd_ = -1;
  std::optional<storage::FolderGuard> guard_;  // None: of a file system for tests.
  std::unique_ptr<Connection> write_;          // Writing thread only, as the next four.
  Meta meta_;
  int log_pages_ = 0;                 // Of SQLite's log, after the last transaction.
  bool stuck_ = false;                // Compaction met damage and was given up.
  std::vector<std::string> written_;  // Records that were lost and that the present transaction writes.
  mutable std::unique_ptr<Connection> read_ TITAN_GUARDED_BY(read_mutex_);
  mutable sync::Mutex read_mutex_;
  std::atomic<int64_t> revision_{0};
  std::atomic<int64_t> max_pages_{0};

  struct Aside {
    Quarantined record;
    bool told = false;  // To on_damage.
  };
  mutable sync::Mutex aside_mutex_;
  mutable std::vector<Aside> aside_ TITAN_GUARDED_BY(aside_mutex_);
  mutable std::map<std::string, std::string> lost_ TITAN_GUARDED_BY(aside_mutex_);  // Reason by key, of those that are.
  // Key (empty: not known) and row of what is on its way aside.
  mutable std::set<std::pair<std::string, int64_t>> reported_ TITAN_GUARDED_BY(aside_mutex_);
  TimeMarks marks_ TITAN_GUARDED_BY(aside_mutex_);

  mutable sync::Mutex check_mutex_;
  sync::Condition check_wake_;
  bool closing_ TITAN_GUARDED_BY(check_mutex_) = false;
  mutable sqlite3* checking_ TITAN_GUARDED_BY(check_mutex_) = nullptr;
  std::thread checks_;
  std::unique_ptr<Writer> writer_;
};

}  // namespace titan::store
