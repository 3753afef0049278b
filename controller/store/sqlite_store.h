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
  int64_t keep_changes = 200'000;  // Changes by which a watcher may lag. Older superseded changes are dropped.
  int group_limit = 512;           // Most transactions per fsync.
  // Transactions and bytes that may wait. Beyond them clients are refused.
  int64_t queue_limit = 65'536;
  int64_t queue_bytes = 256 << 20;
  absl::Duration full_retry = absl::Milliseconds(250);
  absl::Duration fold_after = absl::Seconds(2);  // After this quiet time the WAL is folded into the database file.
  // After this time of service the whole file is checked, then once a day.
  absl::Duration check_after = absl::Minutes(1);
  // Not 0: limit of the file's size, in pages. Simulates a full disk in tests that cannot mount one.
  int64_t max_pages = 0;
  std::string vfs;  // SQLite's file system. Empty: the system's. For tests.
  // Called when the store cannot continue: an I/O or fsync error, corruption, or a file that was deleted or replaced.
  // For the last, the message says where the acknowledged data is. What the store has acknowledged is durable, the rest
  // is not known. The process must end and start again: after a failed fsync nothing in memory can be trusted.
  std::function<void(const absl::Status&)> on_fatal;
  // Called after each group, with its transactions and the time that it took to become durable.
  std::function<void(int transactions, absl::Duration took)> on_commit;
  // Called once for each record that was found damaged, and after each daily check that found damage to the file.
  std::function<void(const Quarantined&)> on_damage;
};

// Result of a check of the whole file.
struct CheckReport {
  int64_t rows = 0;     // Rows of the log.
  int64_t damaged = 0;  // Rows of the log that are damaged. They are set aside.
  std::string file;     // Damage to the file's pages or heads. Empty: none.
};

// A store in one SQLite file, in WAL mode with synchronous=FULL. One thread writes: all transactions that wait when it
// comes back from the disk share the next fsync. Rows carry a CRC over key, value and revision, heads one over key and
// row. A record that does not match is set aside with the reason, and everything else is served.
class SqliteStore : public Store {
 public:
  // Opens or creates `path`, checks the heads, and takes the lock file next to it. Other damage is found when it is
  // read, or by check(). Errors: FailedPrecondition when another process has the store or it has another schema;
  // DataLoss when it is damaged in a way that leaves its content unknown.
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
  absl::StatusOr<std::vector<RecordChange>> changes(int64_t after_revision, int limit) const override;
  void set_aside(const Record& record, const std::string& reason) override;
  std::vector<Quarantined> quarantined() const override;
  int64_t revision_before(absl::Time time) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return writer_->subscribe(std::move(listener)); }

  // Returns the random id that the store got when its file was made.
  const std::string& id() const override { return id_; }
  int64_t epoch() const override { return epoch_; }
  // Changes max_pages. 0: no limit.
  void set_max_pages(int64_t pages) { max_pages_ = pages; }

  // Reads the whole file while the store serves: pages, heads and every row. Damaged records are set aside soon
  // afterwards. Errors: Cancelled when the store closes; Unavailable while another check runs; those of the disk.
  absl::StatusOr<CheckReport> check() const;
  // Drops every superseded change (watchers that are behind get OutOfRange) and returns the space to the file system,
  // in steps between which others write. Blocks: do not call it on the store's thread.
  absl::Status shrink();
  // copy_store() for this store. If a record is found damaged, runs check() and tries again.
  absl::StatusOr<StoreInfo> back_up(const std::string& copy) const;
  // image_of() for this store. Needs neither its file's name nor space on a disk.
  absl::StatusOr<StoreImage> image() const;
  // Ends the store (on_fatal) when one of its files is no longer the one under its name: new data would go where nobody
  // finds it. Every group of transactions is also checked for this before it is acknowledged.
  void check_files();

 private:
  struct Connection;  // A database handle with its prepared statements.
  struct Loaded;      // A record's present row, or why it cannot be read.

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
  // Runs `changes` as one transaction of the file. If it fails, their effects on meta_ are undone, too.
  absl::Status in_transaction(const std::function<absl::Status()>& changes);
  absl::Status save_state();
  absl::Status mark_time();
  absl::Status compact(int64_t keep);
  absl::StatusOr<int64_t> pragma(const char* query);
  absl::Status checkpoint_wal();
  void idle();

  Loaded load(Connection& connection, const Head& head) const;
  absl::StatusOr<std::vector<RecordChange>> read_changes(int64_t after_revision, int limit) const;
  void found_damaged(const std::string& key, int64_t row, const std::string& reason) const;
  bool note_aside(const Quarantined& damaged, bool reported) const;
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
  std::optional<storage::FolderGuard> guard_;  // Not set for a `vfs` of tests.
  std::unique_ptr<Connection> write_;          // This member and the next four are for the writing thread only.
  Meta meta_;
  int log_pages_ = 0;                 // Pages of SQLite's WAL after the last transaction.
  bool compaction_stopped_ = false;   // Compaction met damage and was given up.
  std::vector<std::string> written_;  // Lost records that the present transaction writes.
  mutable std::unique_ptr<Connection> read_ TITAN_GUARDED_BY(read_mutex_);
  mutable sync::Mutex read_mutex_;
  std::atomic<int64_t> revision_{0};
  std::atomic<int64_t> max_pages_{0};

  struct Aside {
    Quarantined record;
    bool reported = false;  // Reported to on_damage.
  };
  mutable sync::Mutex aside_mutex_;
  mutable std::vector<Aside> aside_ TITAN_GUARDED_BY(aside_mutex_);
  // Reason for each lost record, by key.
  mutable std::map<std::string, std::string> lost_ TITAN_GUARDED_BY(aside_mutex_);
  // Key (empty: not known) and row of records that are being set aside.
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
