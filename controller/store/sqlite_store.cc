#include "controller/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status/status.h"
#include "controller/store/rows.h"
#include "controller/store/sqlite.h"

namespace titan::store {
namespace {

// `log` holds every change; `heads` names the row that is each record's present. A value is written once. Rows that
// were superseded long ago are dropped through `previous` when the walk reaches their successor.
constexpr char kSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, key BLOB NOT NULL, value BLOB,
                                previous INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS heads (key BLOB PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS log_revision ON log (revision);
)sql";

// Configurations may hold secrets. SQLite gives its log the mode of the database, which an older Titan left to the
// umask.
absl::Status make_private(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  const int failed = ::fchmod(fd, 0600) == 0 ? 0 : errno;
  ::close(fd);
  for (const char* other : {"-wal", "-shm"}) (void)::chmod((path + other).c_str(), 0600);
  return failed == 0 ? absl::OkStatus() : errno_status(failed, absl::StrCat("chmod ", path));
}

std::string random_id() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

}  // namespace

struct SqliteStore::Connection {
  Database database;
  Statement find, insert, set_head, drop_head, walk, drop_row, set_meta, get, scan, changes;

  static absl::StatusOr<std::unique_ptr<Connection>> open(const std::string& path) {
    auto connection = std::make_unique<Connection>();
    sqlite3* raw = nullptr;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
    connection->database.reset(raw);
    if (code != SQLITE_OK) return sqlite_status(raw, code, absl::StrCat("open ", path));
    sqlite3_extended_result_codes(raw, 1);
    sqlite3_busy_timeout(raw, 5000);
    // FULL also under WAL: a commit returns after its fsync. Under load the log is folded back at 8 MB, since that
    // costs two more fsyncs; otherwise when nothing has happened for a moment, see fold_log().
    TITAN_RETURN_IF_ERROR(execute(raw,
                                  "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=2000;"
                                  "PRAGMA cache_size=-16000; PRAGMA mmap_size=0;"));
    return connection;
  }

  absl::Status prepare() {
    sqlite3* db = database.get();
    TITAN_ASSIGN_OR_RETURN(
        find, Statement::prepare(db, "SELECT h.id, l.revision FROM heads h JOIN log l USING (id) WHERE h.key = ?"));
    TITAN_ASSIGN_OR_RETURN(insert, Statement::prepare(db, "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"));
    TITAN_ASSIGN_OR_RETURN(set_head, Statement::prepare(db, "INSERT OR REPLACE INTO heads VALUES (?, ?)"));
    TITAN_ASSIGN_OR_RETURN(drop_head, Statement::prepare(db, "DELETE FROM heads WHERE key = ?"));
    TITAN_ASSIGN_OR_RETURN(
        walk,
        Statement::prepare(
            db,
            "SELECT id, previous, value IS NULL, revision FROM log WHERE id > ? AND id <= ? ORDER BY id LIMIT 2000"));
    TITAN_ASSIGN_OR_RETURN(drop_row, Statement::prepare(db, "DELETE FROM log WHERE id = ?"));
    TITAN_ASSIGN_OR_RETURN(set_meta, Statement::prepare(db, "INSERT OR REPLACE INTO meta VALUES (?, ?)"));
    TITAN_ASSIGN_OR_RETURN(
        get, Statement::prepare(
                 db, "SELECT l.revision, l.key, l.value, l.crc FROM heads h JOIN log l USING (id) WHERE h.key = ?"));
    TITAN_ASSIGN_OR_RETURN(
        scan, Statement::prepare(db,
                                 "SELECT l.revision, l.key, l.value, l.crc FROM heads h JOIN log l USING (id) WHERE "
                                 "h.key >= ? AND h.key > ? AND h.key < ? ORDER BY h.key LIMIT ?"));
    TITAN_ASSIGN_OR_RETURN(
        changes,
        Statement::prepare(db, "SELECT revision, key, value, crc FROM log WHERE revision > ? ORDER BY revision, id"));
    return absl::OkStatus();
  }
};

SqliteStore::SqliteStore(SqliteOptions options) : options_(std::move(options)), max_pages_(options_.max_pages) {}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::open(const std::string& path, SqliteOptions options) {
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(options)));
  TITAN_RETURN_IF_ERROR(store->initialise(path));
  store->thread_ = std::thread([raw = store.get()] { raw->write_loop(); });
  return store;
}

SqliteStore::~SqliteStore() {
  {
    sync::Lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  writer_.reset();
  reader_.reset();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

absl::Status SqliteStore::initialise(const std::string& path) {
  const std::string lock_path = path + ".lock";
  lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return errno_status(errno, absl::StrCat("open ", lock_path));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another controller uses ", path, "; give this one its own --state folder"));
  }
  TITAN_RETURN_IF_ERROR(make_private(path));
  TITAN_ASSIGN_OR_RETURN(writer_, Connection::open(path));
  Statement check;
  TITAN_ASSIGN_OR_RETURN(check, Statement::prepare(writer_->database.get(), "PRAGMA quick_check(1)"));
  TITAN_ASSIGN_OR_RETURN(const bool checked, check.step());
  if (!checked || check.text(0) != "ok") {
    return absl::DataLossError(absl::StrCat("store ", path, " is damaged: ", checked ? check.text(0) : "no answer",
                                            "; restore the state folder from a backup"));
  }
  check.reset();
  TITAN_RETURN_IF_ERROR(execute(writer_->database.get(), kSchema));
  TITAN_RETURN_IF_ERROR(writer_->prepare());
  TITAN_ASSIGN_OR_RETURN(reader_, Connection::open(path));
  TITAN_RETURN_IF_ERROR(reader_->prepare());
  return annotate(load_meta(), absl::StrCat("store ", path));
}

absl::Status SqliteStore::load_meta() {
  sqlite3* db = writer_->database.get();
  TITAN_ASSIGN_OR_RETURN(const Meta meta, read_meta(db));
  id_ = meta.id;
  compacted_row_ = meta.compacted_row;
  compacted_revision_ = meta.compacted_revision;
  if (meta.schema == 0) {
    id_ = random_id();
    TITAN_RETURN_IF_ERROR(writer_->set_meta.bind("schema_version").bind(int64_t{kSchemaVersion}).run());
    TITAN_RETURN_IF_ERROR(writer_->set_meta.bind("id").bind(id_).run());
  }
  Statement last;
  TITAN_ASSIGN_OR_RETURN(last, Statement::prepare(db, "SELECT max(id), max(revision) FROM log"));
  TITAN_RETURN_IF_ERROR(last.step().status());
  last_row_ = last.integer(0);
  // Compaction may have dropped the last rows only if a tombstone was the newest change: its revision is then the
  // compacted one.
  revision_ = std::max(last.integer(1), compacted_revision_.load());
  last_row_ = std::max(last_row_, compacted_row_);
  next_revision_ = revision_ + 1;
  last.reset();
  return absl::OkStatus();
}

void SqliteStore::commit(Transaction transaction, Committed done) {
  absl::Status failed;
  {
    sync::Lock lock(mutex_);
    failed = failed_;
    if (failed.ok() && closing_) failed = absl::UnavailableError("store: closing");
    if (failed.ok()) {
      queue_.push_back({std::move(transaction), std::move(done)});
      wake_.notify_one();
      return;
    }
  }
  if (done) done(absl::UnavailableError(failed.message()));
}

std::vector<SqliteStore::Queued> SqliteStore::next_group() {
  std::vector<Queued> group;
  sync::Lock lock(mutex_);
  const auto has_work = [this] { return closing_ || !queue_.empty(); };
  if (unfolded_ && !wake_.wait_for(mutex_, absl::ToChronoMilliseconds(options_.fold_after), has_work)) {
    mutex_.unlock();
    fold_log();
    mutex_.lock();
  }
  wake_.wait(mutex_, has_work);
  while (!queue_.empty() && static_cast<int>(group.size()) < options_.group_limit) {
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return group;
}

// Into the database file, so that it is not minutes old and the log does not grow. A failure costs nothing: what is
// committed stays in the log.
void SqliteStore::fold_log() {
  unfolded_ = false;
  (void)execute(writer_->database.get(), "PRAGMA wal_checkpoint(PASSIVE)");
}

void SqliteStore::write_loop() {
  while (true) {
    std::vector<Queued> group = next_group();
    if (group.empty()) return;  // Closing.
    write_group(std::move(group));
  }
}

void SqliteStore::write_group(std::vector<Queued> group) {
  const absl::Time start = absl::Now();
  std::vector<absl::StatusOr<int64_t>> results;
  const absl::Status written = apply_group(group, results);
  if (written.ok()) {
    revision_ = next_revision_ - 1;
    unfolded_ = true;
    if (options_.on_commit) options_.on_commit(static_cast<int>(group.size()), absl::Now() - start);
    for (size_t i = 0; i < group.size(); ++i) {
      if (group[i].done) group[i].done(results[i]);
    }
    listeners_->announce(revision_);
    return;
  }
  next_revision_ = revision_ + 1;
  if (!absl::IsResourceExhausted(written)) return fail(written, std::move(group));
  std::vector<Queued> kept;
  for (Queued& queued : group) {
    if (queued.transaction.when_full == WhenFull::kRetry) {
      kept.push_back(std::move(queued));
    } else if (queued.done) {
      queued.done(absl::ResourceExhaustedError("the controller's disk is full; nothing was changed"));
    }
  }
  sync::Lock lock(mutex_);
  if (closing_ && !kept.empty()) {  // No room to write the rest; what it reports comes again after a restart.
    queue_.clear();
    return;
  }
  const bool waiting = !kept.empty();
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) queue_.push_front(std::move(*it));
  if (waiting) {
    wake_.wait_for(mutex_, absl::ToChronoMilliseconds(options_.full_retry), [this] {
      // A client's request must not wait behind what is being retried: it gets its answer now.
      return closing_ || (!queue_.empty() && queue_.back().transaction.when_full == WhenFull::kRefuse);
    });
  }
}

absl::Status SqliteStore::apply_group(std::vector<Queued>& group, std::vector<absl::StatusOr<int64_t>>& results) {
  sqlite3* db = writer_->database.get();
  // The limit is a property of the connection; SQLite raises it to the present size by itself.
  const int64_t pages = max_pages_ == 0 ? 4294967294 : max_pages_.load();
  TITAN_RETURN_IF_ERROR(execute(db, absl::StrCat("PRAGMA max_page_count=", pages)));
  TITAN_RETURN_IF_ERROR(execute(db, "BEGIN IMMEDIATE"));
  const int64_t row = last_row_;
  const int64_t compacted_row = compacted_row_;
  const int64_t compacted_revision = compacted_revision_;
  absl::Status status;
  for (Queued& queued : group) {
    absl::StatusOr<int64_t> result = apply(queued.transaction);
    if (!result.ok() && !absl::IsAborted(result.status())) {
      status = result.status();
      break;
    }
    results.push_back(std::move(result));
  }
  if (status.ok()) status = compact();
  if (status.ok()) status = execute(db, "COMMIT");
  if (status.ok()) return status;
  sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
  last_row_ = row;
  compacted_row_ = compacted_row;
  compacted_revision_ = compacted_revision;
  return status;
}

absl::StatusOr<int64_t> SqliteStore::apply(const Transaction& transaction) {
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.expected_revision) continue;
    TITAN_ASSIGN_OR_RETURN(const bool found, writer_->find.bind(mutation.key).step());
    const int64_t current = found ? writer_->find.integer(1) : 0;
    writer_->find.reset();
    if (current != *mutation.expected_revision) {
      return absl::AbortedError(
          absl::StrCat(mutation.key, " is at revision ", current, ", not ", *mutation.expected_revision));
    }
  }
  const int64_t revision = next_revision_++;
  for (const Mutation& mutation : transaction.mutations) TITAN_RETURN_IF_ERROR(apply_mutation(mutation, revision));
  return revision;
}

absl::Status SqliteStore::apply_mutation(const Mutation& mutation, int64_t revision) {
  Connection& db = *writer_;
  TITAN_ASSIGN_OR_RETURN(const bool found, db.find.bind(mutation.key).step());
  const int64_t previous = found ? db.find.integer(0) : 0;
  db.find.reset();
  if (!mutation.value && previous == 0) return absl::OkStatus();
  const int64_t row = ++last_row_;
  db.insert.bind(row).bind(revision).bind(mutation.key);
  if (mutation.value) {
    db.insert.bind(*mutation.value);
  } else {
    db.insert.bind_null();
  }
  TITAN_RETURN_IF_ERROR(db.insert.bind(previous).bind(checksum(mutation.key, mutation.value, revision)).run());
  return mutation.value ? db.set_head.bind(mutation.key).bind(row).run() : db.drop_head.bind(mutation.key).run();
}

absl::Status SqliteStore::compact() {
  const int64_t limit = last_row_ - options_.keep_changes;
  if (limit <= compacted_row_) return absl::OkStatus();
  struct Row {
    int64_t id, previous;
    bool tombstone;
    int64_t revision;
  };
  std::vector<Row> rows;
  writer_->walk.bind(compacted_row_).bind(limit);
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, writer_->walk.step());
    if (!more) break;
    const Statement& walk = writer_->walk;
    rows.push_back({walk.integer(0), walk.integer(1), walk.integer(2) != 0, walk.integer(3)});
  }
  writer_->walk.reset();
  for (const Row& row : rows) {
    if (row.previous != 0) TITAN_RETURN_IF_ERROR(writer_->drop_row.bind(row.previous).run());
    if (row.tombstone) TITAN_RETURN_IF_ERROR(writer_->drop_row.bind(row.id).run());
    compacted_row_ = row.id;
    compacted_revision_ = row.revision;
  }
  if (rows.empty()) compacted_row_ = limit;
  TITAN_RETURN_IF_ERROR(writer_->set_meta.bind("compacted_row").bind(compacted_row_).run());
  return writer_->set_meta.bind("compacted_revision").bind(compacted_revision_.load()).run();
}

void SqliteStore::fail(const absl::Status& status, std::vector<Queued> group) {
  {
    sync::Lock lock(mutex_);
    failed_ = status;
    for (Queued& queued : queue_) group.push_back(std::move(queued));
    queue_.clear();
  }
  for (Queued& queued : group) {
    if (queued.done) queued.done(absl::UnavailableError(status.message()));
  }
  if (options_.on_fatal) options_.on_fatal(status);
}

absl::StatusOr<std::optional<Record>> SqliteStore::get(const std::string& key) const {
  sync::Lock lock(read_mutex_);
  TITAN_ASSIGN_OR_RETURN(const bool found, reader_->get.bind(key).step());
  if (!found) {
    reader_->get.reset();
    return std::nullopt;
  }
  absl::StatusOr<Change> row = read_row(reader_->get);
  reader_->get.reset();
  if (!row.ok()) return row.status();
  return Record{std::move(row->key), *std::move(row->value), row->revision};
}

absl::StatusOr<std::vector<Record>> SqliteStore::scan(const std::string& prefix, const std::string& after,
                                                      int limit) const {
  sync::Lock lock(read_mutex_);
  Statement& scan = reader_->scan;
  scan.bind(prefix).bind(after).bind(prefix_end(prefix)).bind(int64_t{limit});
  std::vector<Record> records;
  absl::Status status;
  while (status.ok()) {
    const absl::StatusOr<bool> more = scan.step();
    if (!more.ok() || !*more) {
      status = more.status();
      break;
    }
    absl::StatusOr<Change> row = read_row(scan);
    if (row.ok()) {
      records.push_back({std::move(row->key), *std::move(row->value), row->revision});
    } else {
      status = row.status();
    }
  }
  scan.reset();
  if (!status.ok()) return status;
  return records;
}

absl::StatusOr<std::vector<Change>> SqliteStore::changes(int64_t after_revision, int limit) const {
  sync::Lock lock(read_mutex_);
  Statement& read = reader_->changes;
  read.bind(after_revision);
  std::vector<Change> found;
  absl::Status status;
  while (status.ok()) {
    const absl::StatusOr<bool> more = read.step();
    if (!more.ok() || !*more) {
      status = more.status();
      break;
    }
    if (static_cast<int>(found.size()) >= limit && read.integer(0) != found.back().revision) break;
    absl::StatusOr<Change> row = read_row(read);
    if (row.ok()) {
      found.push_back(*std::move(row));
    } else {
      status = row.status();
    }
  }
  read.reset();
  if (!status.ok()) return status;
  // After the read, so that a compaction in between cannot go unnoticed.
  if (after_revision < compacted_revision_) {
    return absl::OutOfRangeError(
        absl::StrCat("revision ", after_revision, " was compacted; the oldest is ", compacted_revision_.load()));
  }
  return found;
}

}  // namespace titan::store
