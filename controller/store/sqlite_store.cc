#include "controller/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

failpoint::Failpoint begin_point("store.begin"), changed_point("store.changed"), state_point("store.state"),
    committed_point("store.committed"), row_point("store.row"), erased_point("store.erased"), mark_point("store.mark"),
    retention_point("store.retention"), epoch_point("store.epoch"), opened_point("store.opened");

// Makes the files readable only for this user: configurations may hold secrets. SQLite gives its WAL the mode of the
// database, which an older Titan left to the umask.
absl::Status make_private(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  const int failed = ::fchmod(fd, 0600) == 0 ? 0 : errno;
  ::close(fd);
  for (const char* other : {"-wal", "-shm"}) (void)::chmod((path + other).c_str(), 0600);
  return failed == 0 ? absl::OkStatus() : errno_status(failed, absl::StrCat("chmod ", path));
}

WriterOptions writer_options(const SqliteOptions& options) {
  WriterOptions writer;
  writer.group_limit = options.group_limit;
  writer.queue_limit = options.queue_limit;
  writer.queue_bytes = options.queue_bytes;
  writer.full_retry = options.full_retry;
  writer.idle_after = options.fold_after;
  return writer;
}

}  // namespace

SqliteStore::SqliteStore(SqliteOptions options) : options_(std::move(options)), max_pages_(options_.max_pages) {
  writer_ = std::make_unique<Writer>(
      writer_options(options_),
      Writer::Backend{[this](const Writer::Group& group, auto& results) { return apply_group(group, results); },
                      [this] { idle(); },
                      [this](const absl::Status& status) {
                        const std::string rescued = lost_files().ok() ? "" : rescue();
                        if (options_.on_fatal)
                          options_.on_fatal(absl::Status(status.code(), absl::StrCat(status.message(), rescued)));
                      }});
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::open(const std::string& path, SqliteOptions options) {
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(options)));
  store->path_ = path;
  TITAN_RETURN_IF_ERROR(store->initialise());
  store->writer_->start();
  if (store->options_.check_after < absl::InfiniteDuration()) {
    store->checks_ = std::thread([raw = store.get()] { raw->check_loop(); });
  }
  return store;
}

SqliteStore::~SqliteStore() {
  {
    sync::Lock lock(check_mutex_);
    closing_ = true;
    if (checking_ != nullptr) sqlite3_interrupt(checking_);
  }
  check_wake_.notify_all();
  if (checks_.joinable()) checks_.join();
  writer_->close();
  write_.reset();
  read_.reset();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

absl::Status SqliteStore::initialise() {
  const std::string lock_path = path_ + ".lock";
  lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return errno_status(errno, absl::StrCat("open ", lock_path));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another controller uses ", path_, "; give this one its own --state folder"));
  }
  if (options_.vfs.empty()) TITAN_RETURN_IF_ERROR(make_private(path_));
  TITAN_ASSIGN_OR_RETURN(write_, Connection::open(path_, options_.vfs));
  sqlite3_wal_hook(
      write_->database.get(),
      [](void* pages, sqlite3*, const char*, int count) {
        *static_cast<int*>(pages) = count;
        return SQLITE_OK;
      },
      &log_pages_);
  const std::string what = absl::StrCat("store ", path_);
  TITAN_RETURN_IF_ERROR(annotate(make_schema(), what));
  TITAN_RETURN_IF_ERROR(annotate(check_heads(), what));
  TITAN_RETURN_IF_ERROR(annotate(load_marks(), what));
  TITAN_ASSIGN_OR_RETURN(read_, Connection::open(path_, options_.vfs));
  TITAN_RETURN_IF_ERROR(read_->prepare());
  id_ = meta_.id;
  // The epoch is durable before it is used. But a full disk must not keep the controller from serving: then the epoch
  // is written with the first transaction that fits.
  ++meta_.epoch;
  epoch_ = meta_.epoch;
  epoch_point.pass();
  const absl::Status saved = in_transaction([] { return absl::OkStatus(); });
  if (!saved.ok() && !absl::IsResourceExhausted(saved)) return annotate(saved, what);
  revision_ = meta_.last_revision;
  if (options_.vfs.empty()) {
    const std::filesystem::path path = std::filesystem::absolute(path_);
    const std::string name = path.filename().string();
    TITAN_ASSIGN_OR_RETURN(guard_, storage::FolderGuard::open(path.parent_path().string(),
                                                              {name, name + "-wal", name + "-shm", name + ".lock"}));
  }
  opened_point.pass();
  return absl::OkStatus();
}

absl::Status SqliteStore::in_transaction(const std::function<absl::Status()>& changes) {
  sqlite3* db = write_->database.get();
  begin_point.pass();
  TITAN_RETURN_IF_ERROR(execute(db, "BEGIN IMMEDIATE"));
  const Meta before = meta_;
  absl::Status status = changes();
  changed_point.pass();
  if (status.ok()) status = save_state();
  state_point.pass();
  if (status.ok()) status = execute(db, "COMMIT");
  committed_point.pass();
  if (status.ok()) return status;
  sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
  meta_ = before;
  written_.clear();
  return status;
}

absl::Status SqliteStore::save_state() { return write_->set_meta.bind("state").bind(encode_state(meta_)).run(); }

absl::Status SqliteStore::apply_group(const Writer::Group& group, std::vector<absl::StatusOr<int64_t>>& results) {
  const absl::Time start = absl::Now();
  // The limit belongs to the connection. SQLite raises it to the present size by itself.
  const int64_t pages = max_pages_ == 0 ? 4294967294 : max_pages_.load();
  TITAN_RETURN_IF_ERROR(execute(write_->database.get(), absl::StrCat("PRAGMA max_page_count=", pages)));
  TITAN_RETURN_IF_ERROR(in_transaction([&]() -> absl::Status {
    for (const Writer::Queued& queued : group) {
      absl::StatusOr<int64_t> result = apply(queued.transaction);
      const bool refused = absl::IsAborted(result.status()) || absl::IsInvalidArgument(result.status());
      if (!result.ok() && !refused) return result.status();
      results.push_back(std::move(result));
    }
    mark_point.pass();
    TITAN_RETURN_IF_ERROR(mark_time());
    retention_point.pass();
    return compact(options_.keep_changes);
  }));
  TITAN_RETURN_IF_ERROR(lost_files());  // Without its files the store would be durable where nobody looks.
  revision_ = meta_.last_revision;
  forget_lost();
  // Under load the WAL is folded at 8 MB, since that costs two more fsyncs. Otherwise idle() does it. The group is
  // durable in any case.
  if (log_pages_ > 2000) {
    const absl::Status folded = checkpoint_wal();
    if (!folded.ok()) writer_->fail(folded);
  }
  if (options_.on_commit) options_.on_commit(static_cast<int>(group.size()), absl::Now() - start);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SqliteStore::apply(const Transaction& transaction) {
  for (const std::string& prefix : transaction.erased_prefixes) {
    if (prefix.empty()) return absl::InvalidArgumentError("store: an empty prefix would erase everything");
  }
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.expected_revision) continue;
    TITAN_ASSIGN_OR_RETURN(const bool found, write_->find.bind(mutation.key).step());
    const Head head = found ? read_head(write_->find) : Head{};
    write_->find.reset();
    int64_t current = 0;
    if (found) {
      const Loaded loaded = load(*write_, head);
      TITAN_RETURN_IF_ERROR(loaded.failed);
      if (!loaded.record) return absl::AbortedError(absl::StrCat(mutation.key, ": ", loaded.damage));
      current = loaded.record->revision;
    }
    if (current != *mutation.expected_revision) {
      return absl::AbortedError(
          absl::StrCat(mutation.key, " is at revision ", current, ", not ", *mutation.expected_revision));
    }
  }
  const int64_t revision = ++meta_.last_revision;
  for (const std::string& prefix : transaction.erased_prefixes) {
    TITAN_RETURN_IF_ERROR(erase_prefix(prefix, revision));
  }
  for (const Mutation& mutation : transaction.mutations) TITAN_RETURN_IF_ERROR(apply_mutation(mutation, revision));
  return revision;
}

absl::Status SqliteStore::apply_mutation(const Mutation& mutation, int64_t revision) {
  Connection& db = *write_;
  TITAN_ASSIGN_OR_RETURN(const bool found, db.find.bind(mutation.key).step());
  const Head head = found ? read_head(db.find) : Head{};
  db.find.reset();
  if (found && !head.whole) {  // The next start rebuilds the heads.
    return absl::DataLossError(absl::StrCat("store: the head of '", mutation.key, "' does not match its checksum"));
  }
  TITAN_RETURN_IF_ERROR(note_written(mutation.key));
  if (!mutation.value) return found ? erase_row(mutation.key, head, revision) : absl::OkStatus();
  const int64_t row = ++meta_.last_row;
  const int64_t crc = head_checksum(mutation.key, row);
  db.insert.bind(row).bind(revision).bind(mutation.key).bind(*mutation.value).bind(head.row);
  TITAN_RETURN_IF_ERROR(db.insert.bind(checksum(mutation.key, mutation.value, revision)).run());
  row_point.pass();
  meta_.heads += found ? 0 : 1;
  meta_.heads_sum += crc - head.crc;
  return db.set_head.bind(mutation.key).bind(row).bind(crc).run();
}

absl::Status SqliteStore::erase_prefix(const std::string& prefix, int64_t revision) {
  std::vector<std::string> keys;
  {
    Statement& heads = write_->heads;
    heads.bind(prefix).bind(std::string()).bind(prefix_end(prefix));
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const bool more, heads.step());
      if (!more) break;
      const std::string key = heads.text(0);
      if (!keys.empty() && key <= keys.back()) {  // A damaged page may lead in circles.
        return absl::DataLossError(absl::StrCat("store: the head of '", key, "' is out of order"));
      }
      keys.push_back(key);
    }
    heads.reset();
  }
  {
    sync::Lock lock(aside_mutex_);
    for (auto it = lost_.lower_bound(prefix); it != lost_.end() && it->first.starts_with(prefix); ++it) {
      keys.push_back(it->first);
    }
  }
  for (const std::string& key : keys) TITAN_RETURN_IF_ERROR(apply_mutation(erase(key), revision));
  return absl::OkStatus();
}

// A lost record is no longer lost when it is written or erased.
absl::Status SqliteStore::note_written(const std::string& key) {
  {
    sync::Lock lock(aside_mutex_);
    if (!lost_.contains(key)) return absl::OkStatus();
  }
  written_.push_back(key);
  TITAN_ASSIGN_OR_RETURN(Statement found,
                         Statement::prepare(write_->database.get(), "UPDATE quarantine SET lost = 0 WHERE key = ?"));
  return found.bind(key).run();
}

void SqliteStore::forget_lost() {
  if (written_.empty()) return;
  sync::Lock lock(aside_mutex_);
  for (const std::string& key : written_) lost_.erase(key);
  for (Aside& aside : aside_) aside.record.lost = aside.record.lost && lost_.contains(aside.record.key);
  written_.clear();
}

absl::Status SqliteStore::erase_row(const std::string& key, const Head& head, int64_t revision) {
  Connection& db = *write_;
  db.insert.bind(++meta_.last_row).bind(revision).bind(key).bind_null().bind(head.row);
  TITAN_RETURN_IF_ERROR(db.insert.bind(checksum(key, std::nullopt, revision)).run());
  erased_point.pass();
  --meta_.heads;
  meta_.heads_sum -= head.crc;
  return db.drop_head.bind(key).run();
}

// Marks the time about every minute, for revision_before().
absl::Status SqliteStore::mark_time() {
  const absl::Time now = absl::Now();
  {
    sync::Lock lock(aside_mutex_);
    const size_t before = marks_.all().empty() ? 0 : marks_.all().back().time_s;
    marks_.add(now, meta_.last_revision);
    if (static_cast<int64_t>(before) == marks_.all().back().time_s) return absl::OkStatus();
  }
  const int64_t time_s = absl::ToUnixSeconds(now);
  return execute(write_->database.get(),
                 absl::StrFormat("INSERT OR REPLACE INTO marks VALUES (%d, %d, %d)", time_s, meta_.last_revision,
                                 mark_checksum(time_s, meta_.last_revision)));
}

// Drops superseded changes that are older than the last `keep` changes, one step at a time.
absl::Status SqliteStore::compact(int64_t keep) {
  const int64_t limit = meta_.last_row - keep;
  if (limit <= meta_.compacted_row || compaction_stopped_) return absl::OkStatus();
  struct Row {
    int64_t id, previous;
    std::string key;
    bool tombstone;
    int64_t revision;
  };
  std::vector<Row> rows;
  Statement& walk = write_->walk;
  walk.bind(meta_.compacted_row).bind(limit);
  while (true) {
    const absl::StatusOr<bool> more = walk.step();
    if (!more.ok() && !absl::IsDataLoss(more.status())) return more.status();
    if (more.ok() && !*more) break;
    const int64_t before = rows.empty() ? meta_.compacted_row : rows.back().id;
    // The log is damaged: old changes stay, and new ones are still written.
    if (!more.ok() || walk.integer(0) <= before) {
      walk.reset();
      compaction_stopped_ = true;
      return absl::OkStatus();
    }
    const std::string key = walk.text(2);
    const bool tombstone = walk.integer(3) != 0 && checksum(key, std::nullopt, walk.integer(4)) == walk.integer(5);
    rows.push_back({walk.integer(0), walk.integer(1), key, tombstone, walk.integer(4)});
  }
  walk.reset();
  for (const Row& row : rows) {
    // Drops only an older row of the same record, because `previous` has no checksum.
    if (row.previous > 0 && row.previous < row.id) {
      TITAN_RETURN_IF_ERROR(write_->drop_row.bind(row.previous).bind(row.key).run());
    }
    if (row.tombstone) TITAN_RETURN_IF_ERROR(write_->drop_row.bind(row.id).bind(row.key).run());
    meta_.compacted_row = row.id;
    meta_.compacted_revision = std::max(meta_.compacted_revision, std::min(row.revision, meta_.last_revision));
  }
  if (rows.empty()) meta_.compacted_row = limit;
  return absl::OkStatus();
}

}  // namespace titan::store
