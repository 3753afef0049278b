#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "controller/store/etcd/elector.h"
#include "controller/store/etcd/layout.h"
#include "controller/store/store.h"
#include "controller/store/table.h"
#include "controller/store/writer.h"
#include "titan/store/log.pb.h"

namespace titan::store {

struct EtcdStoreOptions {
  int64_t keep_changes = 200'000;  // Changes by which a watcher may lag.
  int64_t value_bytes = 1 << 20;   // Approximate limit of a value in etcd. Larger values are split. etcd takes 1.5 MiB.
  // A snapshot follows when the log has grown by snapshot_bytes and the last snapshot's size, or by snapshot_entries.
  int64_t snapshot_bytes = 16 << 20;
  int64_t snapshot_entries = 10'000;
  // Drops old versions of all keys in etcd after a snapshot, not only its own: only the controllers use this etcd.
  bool compact_etcd = true;
  WriterOptions writer = {.group_bytes = 1 << 20};
  absl::Duration close_timeout = absl::Seconds(5);  // How long a closing store waits for etcd's answer.
  // Called when this process no longer leads, or etcd refused what it must not refuse: nothing can be written any more.
  // The process must end and start again. Called once, on the store's thread.
  std::function<void(const absl::Status&)> on_lost;
  // Called after each group, with its transactions and the time that it took to become durable.
  std::function<void(int transactions, absl::Duration taken)> on_commit;
  // Called once for each record that was set aside.
  std::function<void(const Quarantined&)> on_damage;
};

// The store of several controllers of which one leads: its log is in etcd, its records are in memory. Everything that
// waits during a write shares the next one. An entry of the log and its new head are one etcd transaction that compares
// the leader's epoch and the head. So nobody else writes, and no entry is written twice. If no answer comes, the same
// transaction is sent again until etcd has reported its outcome.
class EtcdStore : public Store {
 public:
  // Reads everything and takes over. `elector` must have won its campaign. Errors: Unavailable if it no longer leads or
  // etcd does not answer; DataLoss, which names the missing or damaged key.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> open(std::unique_ptr<Elector> elector,
                                                         EtcdStoreOptions options = {});
  // Writes what was queued and resigns: another controller can lead at once.
  ~EtcdStore() override;

  void commit(Transaction transaction, Committed done) override {
    writer_.commit(std::move(transaction), std::move(done));
  }
  QueueSize queued() const override { return writer_.queued(); }
  const std::string& id() const override { return id_; }
  int64_t epoch() const override { return elector_->epoch(); }
  int64_t revision() const override;
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const override;
  absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                           int limit) const override;
  absl::StatusOr<std::vector<RecordChange>> changes(int64_t after_revision, int limit) const override;
  void set_aside(const Record& record, const std::string& reason) override;
  std::vector<Quarantined> quarantined() const override;
  int64_t revision_before(absl::Time time) const override;
  std::shared_ptr<void> subscribe(Listener listener) override { return writer_.subscribe(std::move(listener)); }

  // Writes a snapshot now and drops the log before it. Blocks: do not call it on the store's thread.
  absl::Status snapshot();
  Elector& elector() { return *elector_; }

 private:
  static constexpr absl::Duration kRetry = absl::Milliseconds(50);  // Pause after a call without an answer.

  EtcdStore(std::unique_ptr<Elector> elector, EtcdStoreOptions options);

  absl::Status load();
  absl::Status load_all();
  struct Ends {
    std::optional<v1::LogHead> head;
    v1::SnapshotPointer snapshot;
  };
  absl::StatusOr<Ends> read_ends();
  absl::Status begin();
  absl::Status load_snapshot(const v1::SnapshotPointer& pointer);
  absl::Status load_log();
  absl::Status load_entry(const etcdserverpb::KeyValue& stored);
  absl::StatusOr<std::string> read_value(const std::string& key);
  absl::StatusOr<etcdserverpb::RangeResponse> read(const etcdserverpb::RangeRequest& request);

  absl::Status write(const Writer::Group& group, std::vector<absl::StatusOr<int64_t>>& results);
  absl::StatusOr<std::string> store_entry(const v1::LogEntry& entry);
  absl::Status append(const std::string& key, const std::string& value, int64_t last);
  absl::Status move_head(etcdserverpb::TxnRequest request, const v1::LogHead& head);
  void apply(v1::LogEntry& entry);

  etcdserverpb::TxnRequest fenced() const;
  absl::StatusOr<etcdserverpb::TxnResponse> settle(const etcdserverpb::TxnRequest& request);
  // Returns the value and mod revision that a failed comparison of `settle` read; nullptr if there is none.
  static const etcdserverpb::KeyValue* found_instead(const etcdserverpb::TxnResponse& answer);
  absl::Status commit_as_leader(const etcdserverpb::TxnRequest& request);
  absl::Status lost();

  void snapshot_loop();
  absl::StatusOr<v1::SnapshotPointer> write_snapshot() TITAN_REQUIRES(snapshot_mutex_);
  absl::Status switch_snapshot(const v1::SnapshotPointer& pointer) TITAN_REQUIRES(snapshot_mutex_);
  bool snapshot_is_due() const;

  const EtcdStoreOptions options_;
  const std::unique_ptr<Elector> elector_;
  const Layout layout_;
  std::string id_;
  int64_t head_changed_ = 0;  // Mod revision of the head. For the writing thread only, once the store is open.
  int64_t drafts_ = 0;        // Number of entries that were written in parts. For the writing thread only.
  mutable sync::Mutex mutex_;
  Table table_ TITAN_GUARDED_BY(mutex_);
  TimeMarks marks_ TITAN_GUARDED_BY(mutex_);

  sync::Mutex snapshot_mutex_;                                      // Allows one snapshot at a time.
  int64_t snapshot_changed_ TITAN_GUARDED_BY(snapshot_mutex_) = 0;  // Mod revision of the pointer.
  int64_t snapshots_made_ TITAN_GUARDED_BY(snapshot_mutex_) = 0;
  std::atomic<int64_t> last_bytes_{0};                  // Size of the last snapshot.
  std::atomic<int64_t> log_bytes_{0}, log_entries_{0};  // Log since that snapshot.
  sync::Mutex wake_mutex_;
  sync::Condition wake_;
  bool ending_ TITAN_GUARDED_BY(wake_mutex_) = false;
  std::thread snapshots_;
  std::atomic<bool> closing_{false};

  Writer writer_;
};

}  // namespace titan::store
