// Damaged records are set aside with a reason, and everything else is served. Also tests backups, epochs and freed
// space.

#include <sqlite3.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "controller/store/backup.h"
#include "controller/store/sqlite.h"
#include "controller/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class QuarantineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "titan-quarantine-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/titan.db";
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  void open(SqliteOptions options = {}) {
    store_.reset();
    options.on_damage = [this](const Quarantined& damaged) {
      const std::lock_guard lock(mutex_);
      reported_.push_back(damaged);
    };
    auto opened = SqliteStore::open(path_, std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  absl::StatusOr<int64_t> commit(std::vector<Mutation> mutations) {
    std::promise<absl::StatusOr<int64_t>> promise;
    store_->commit({std::move(mutations)}, [&](const auto& result) { promise.set_value(result); });
    return promise.get_future().get();
  }
  // Changes the closed file without the store's knowledge.
  void change(const std::string& sql) {
    store_.reset();
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &raw), SQLITE_OK);
    const Database database(raw);
    const absl::Status changed = execute(raw, sql);
    ASSERT_TRUE(changed.ok()) << changed;
  }
  int64_t number(const std::string& sql) const {
    sqlite3* raw = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &raw), SQLITE_OK);
    const Database database(raw);
    Statement statement = *Statement::prepare(raw, sql.c_str());
    EXPECT_TRUE(*statement.step());
    return statement.integer(0);
  }
  std::string value(const std::string& key) {
    const auto record = store_->get(key);
    return !record.ok() ? absl::StatusCodeToString(record.status().code()) : *record ? (*record)->value : "(none)";
  }
  // The writing thread sets aside what readers found, before the next commit.
  void settle() { ASSERT_TRUE(commit({}).ok()); }

  std::string folder_, path_;
  std::mutex mutex_;
  std::vector<Quarantined> reported_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(QuarantineTest, DamagedRecordIsQuarantinedAndTheRestServed) {
  open();
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(commit({put(key, "first")}).ok());
  ASSERT_TRUE(commit({put("b", "second")}).ok());
  change("UPDATE log SET value = CAST('flipped' AS BLOB) WHERE id = 4");
  open();
  EXPECT_EQ(scan_all(*store_, "")->size(), 2u);
  EXPECT_EQ(value("b"), "DATA_LOSS");  // Not the previous value.
  settle();
  ASSERT_EQ(store_->quarantined().size(), 1u);
  const Quarantined aside = store_->quarantined()[0];
  EXPECT_EQ(aside.key, "b");
  EXPECT_EQ(aside.revision, 4);
  EXPECT_TRUE(aside.lost);
  EXPECT_THAT(aside.reason, HasSubstr("does not match its checksum"));
  EXPECT_EQ(reported_.size(), 1u);
  EXPECT_EQ(value("b"), "DATA_LOSS");
  EXPECT_EQ(store_->changes(3, 10).status().code(),
            absl::StatusCode::kOutOfRange);  // Readers have to read the records again.
  EXPECT_TRUE(store_->changes(store_->revision(), 10)->empty());
  open();
  EXPECT_EQ(value("b"), "DATA_LOSS");  // Still so after the next opening.
  EXPECT_EQ(reported_.size(), 1u);     // Reported once by the next opening.
  ASSERT_TRUE(commit({put("b", "third")}).ok());
  EXPECT_EQ(value("b"), "third");
  ASSERT_TRUE(commit({erase("b")}).ok());
  EXPECT_EQ(value("b"), "(none)");
  EXPECT_FALSE(store_->quarantined()[0].lost);
  store_.reset();
  EXPECT_EQ(number("SELECT count(*) FROM quarantine WHERE CAST(value AS TEXT) = 'flipped' AND lost = 0"), 1);
}

// The next value of the same record may be damaged as well.
TEST_F(QuarantineTest, ARecordMayBeDamagedAgain) {
  open();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  for (int64_t times = 1; times <= 2; ++times) {
    store_->set_aside(**store_->get("a"), absl::StrCat("reason ", times));
    EXPECT_EQ(store_->quarantined().size(), static_cast<size_t>(times));  // Immediately.
    settle();
    EXPECT_EQ(value("a"), "DATA_LOSS");
    ASSERT_TRUE(commit({put("a", "2")}).ok());
    EXPECT_EQ(value("a"), "2");
  }
  EXPECT_EQ(reported_.size(), 2u);
  EXPECT_EQ(reported_[1].reason, "reason 2");
}

// Damage is reported even if the disk has no space to record it.
TEST_F(QuarantineTest, AFullDiskDoesNotHideDamage) {
  open();
  std::vector<Mutation> mutations = {put("a", "1"), put("b", "2")};
  for (int i = 0; i < 200; ++i) mutations.push_back(put(absl::StrCat("k", i), std::string(1000, 'x')));
  ASSERT_TRUE(commit(mutations).ok());
  change("UPDATE log SET value = zeroblob(100000) WHERE id = 2");
  SqliteOptions options;
  options.max_pages = 1;  // No more pages than the file has.
  open(options);
  EXPECT_EQ(value("b"), "DATA_LOSS");
  ASSERT_EQ(store_->quarantined().size(), 1u);
  EXPECT_TRUE(store_->quarantined()[0].lost);
  std::promise<absl::StatusOr<int64_t>> refused;
  store_->commit({{put("c", std::string(100'000, 'x'))}, WhenFull::kRefuse},
                 [&](const auto& result) { refused.set_value(result); });
  EXPECT_EQ(refused.get_future().get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(value("b"), "DATA_LOSS");
  EXPECT_EQ(value("a"), "1");
  EXPECT_EQ(store_->quarantined().size(), 1u);
}

TEST_F(QuarantineTest, ErasingALostRecordResolvesIt) {
  open();
  ASSERT_TRUE(commit({put("a", "1"), put("b", "2")}).ok());
  change("UPDATE log SET value = x'00' WHERE id = 1");
  open();
  EXPECT_EQ(value("a"), "DATA_LOSS");
  settle();
  ASSERT_TRUE(commit({erase("a")}).ok());
  EXPECT_EQ(value("a"), "(none)");
  open();
  EXPECT_EQ(value("a"), "(none)");
}

// Damaged heads are rebuilt from the log: nothing is lost, and it is reported.
TEST_F(QuarantineTest, DamagedHeadsAreRebuiltFromTheLog) {
  const char* const kinds[] = {
      "UPDATE heads SET id = 1 WHERE CAST(key AS TEXT) = 'b'",   // The row of another record.
      "UPDATE heads SET id = 2 WHERE CAST(key AS TEXT) = 'b'",   // An older row of the same record.
      "UPDATE heads SET id = 99 WHERE CAST(key AS TEXT) = 'b'",  // A row that does not exist.
      "UPDATE heads SET key = CAST('x' AS BLOB) WHERE CAST(key AS TEXT) = 'b'",
      "UPDATE heads SET crc = 7 WHERE CAST(key AS TEXT) = 'b'",
      "DELETE FROM heads WHERE CAST(key AS TEXT) = 'b'",
      "DELETE FROM heads",
      "INSERT INTO heads SELECT CAST('x' AS BLOB), id, crc FROM heads WHERE CAST(key AS TEXT) = 'b'",
  };
  for (const char* kind : kinds) {
    SCOPED_TRACE(kind);
    open();
    ASSERT_TRUE(commit({put("a", "1"), put("b", "old"), put("c", "3")}).ok());
    ASSERT_TRUE(commit({put("b", "2"), erase("c")}).ok());
    change(kind);
    reported_.clear();
    open();
    EXPECT_EQ(value("a"), "1");
    EXPECT_EQ(value("b"), "2");
    EXPECT_EQ(value("c"), "(none)");
    EXPECT_EQ(value("x"), "(none)");
    ASSERT_EQ(reported_.size(), 1u);
    EXPECT_FALSE(reported_[0].lost);
    EXPECT_THAT(reported_[0].reason, HasSubstr("rebuilt from the log"));
    EXPECT_EQ(store_->quarantined().size(), 1u);
    open();
    EXPECT_EQ(reported_.size(), 1u);
    EXPECT_EQ(value("b"), "2");
    store_.reset();
    for (const char* end : {"", ".lock"}) fs::remove(path_ + end);
  }
}

// A head that is damaged while the store serves is not followed.
TEST_F(QuarantineTest, HeadDamagedWhileServingIsNotFollowed) {
  open();
  ASSERT_TRUE(commit({put("a", "1"), put("b", "2")}).ok());
  {
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &raw), SQLITE_OK);
    const Database database(raw);
    ASSERT_TRUE(execute(raw, "UPDATE heads SET id = 1 WHERE CAST(key AS TEXT) = 'b'").ok());
  }
  EXPECT_EQ(value("b"), "DATA_LOSS");
  EXPECT_EQ(scan_all(*store_, "")->size(), 1u);
  open();
  EXPECT_EQ(value("b"), "2");
}

// A row is lost and heads are damaged: the lost record is named.
TEST_F(QuarantineTest, AMissingRowIsNamed) {
  open();
  ASSERT_TRUE(commit({put("a", "1"), put("b", "2"), put("c", "3")}).ok());
  change("DELETE FROM log WHERE id = 2; UPDATE heads SET crc = 7 WHERE CAST(key AS TEXT) = 'a'");
  open();
  EXPECT_EQ(value("a"), "1");
  EXPECT_EQ(value("b"), "DATA_LOSS");
  EXPECT_EQ(value("c"), "3");
  ASSERT_EQ(store_->quarantined().size(), 2u);
  EXPECT_EQ(store_->quarantined()[1].key, "b");
  open();
  EXPECT_EQ(value("b"), "DATA_LOSS");
  // Both are damaged: the missing record cannot be known.
  change("DELETE FROM log WHERE id = 3; DELETE FROM heads WHERE CAST(key AS TEXT) = 'c'");
  const absl::Status refused = SqliteStore::open(path_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("restore the state folder from a backup"));
}

TEST_F(QuarantineTest, DamagedStateIsRefused) {
  open();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  change(
      "UPDATE meta SET value = CAST(replace(CAST(value AS TEXT), ' 1 ', ' 7 ') AS BLOB) "
      "WHERE CAST(key AS TEXT) = 'state'");
  EXPECT_EQ(SqliteStore::open(path_).status().code(), absl::StatusCode::kDataLoss);
}

// A check on demand reads everything; damaged old changes do not make a record lost.
TEST_F(QuarantineTest, CheckFindsDamageInUnreadRows) {
  open();
  ASSERT_TRUE(commit({put("a", "1"), put("b", "2")}).ok());
  ASSERT_TRUE(commit({put("a", "3")}).ok());
  const absl::StatusOr<CheckReport> clean = store_->check();
  ASSERT_TRUE(clean.ok()) << clean.status();
  EXPECT_EQ(clean->rows, 3);
  EXPECT_EQ(clean->damaged, 0);
  EXPECT_EQ(clean->file, "");
  change("UPDATE log SET value = x'00' WHERE id IN (1, 2)");
  open();
  EXPECT_EQ(store_->check()->damaged, 2);
  settle();
  const std::vector<Quarantined> aside = store_->quarantined();
  ASSERT_EQ(aside.size(), 2u);
  EXPECT_EQ(aside[0].lost, false);
  EXPECT_EQ(aside[1].key, "b");
  EXPECT_TRUE(aside[1].lost);
  EXPECT_EQ(value("a"), "3");
  EXPECT_EQ(store_->check()->damaged, 0);
}

// The store checks itself after it has served for a while.
TEST_F(QuarantineTest, TheFileIsCheckedInTheBackground) {
  open();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  change("UPDATE log SET value = x'00'");
  SqliteOptions options;
  options.check_after = absl::ZeroDuration();
  open(options);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (store_->quarantined().empty() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(store_->quarantined().size(), 1u);
  EXPECT_EQ(store_->quarantined()[0].key, "a");
}

TEST_F(QuarantineTest, AStoreWithADamagedRecordCanBeBackedUp) {
  open();
  ASSERT_TRUE(commit({put("a", "1"), put("b", "2")}).ok());
  change("UPDATE log SET value = x'00' WHERE id = 1");
  open();
  const absl::StatusOr<StoreInfo> made = store_->back_up(folder_ + "/copy");
  ASSERT_TRUE(made.ok()) << made.status();
  const int64_t epoch = store_->epoch();
  ASSERT_TRUE(restore_store(folder_ + "/copy", folder_ + "/restored").ok());
  const auto restored = *SqliteStore::open(folder_ + "/restored/titan.db");
  EXPECT_EQ((*restored->get("b"))->value, "2");
  EXPECT_EQ(restored->get("a").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(restored->quarantined().size(), 1u);
  EXPECT_GT(restored->epoch(),
            epoch + 1000);  // Higher than any number of openings of the first store after the backup could give.
}

TEST_F(QuarantineTest, TheEpochGrowsWithEachOpening) {
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    open();
    EXPECT_GT(store_->epoch(), last);
    last = store_->epoch();
  }
}

// Purged history frees its space, and the rest stays intact.
TEST_F(QuarantineTest, ShrinkFreesDiskSpace) {
  open();
  for (int job = 0; job < 40; ++job) {
    std::vector<Mutation> mutations = {put(absl::StrCat("job/", job), std::string(500, 'j'))};
    for (int i = 0; i < 100; ++i) {
      mutations.push_back(put(absl::StrFormat("event/job/%d/%03d", job, i), std::string(1000, 'e')));
    }
    ASSERT_TRUE(commit(std::move(mutations)).ok());
  }
  ASSERT_TRUE(store_->shrink().ok());
  const auto before = static_cast<int64_t>(fs::file_size(path_));
  EXPECT_EQ(*purge(*store_, "event/job/", 35), 3500);  // The jobs of the first 35 transactions.
  ASSERT_TRUE(store_->shrink().ok());
  EXPECT_LT(static_cast<int64_t>(fs::file_size(path_)), before / 4);
  EXPECT_EQ(scan_all(*store_, "job/")->size(), 40u);
  EXPECT_EQ(scan_all(*store_, "event/")->size(), 500u);
  EXPECT_EQ(store_->changes(1, 10).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store_->check()->damaged, 0);
  open();
  EXPECT_EQ(scan_all(*store_, "event/")->size(), 500u);
}

// Writes 1000 finished jobs (or TITAN_STORE_JOBS) as a controller does, and prints how long it takes to open, read and
// check them.
TEST_F(QuarantineTest, OpeningReadsHeadsOnly) {
  const int jobs = getenv("TITAN_STORE_JOBS") == nullptr ? 1000 : atoi(getenv("TITAN_STORE_JOBS"));
  open();
  const std::string spec(7500, 's'), job(1000, 'j'), event(180, 'e'), attempt(600, 'a');
  std::atomic<int> left{jobs};
  for (int i = 0; i < jobs; ++i) {
    const std::string uid = absl::StrFormat("%024d", i * 7919 % jobs);
    std::vector<Mutation> mutations = {put("job/" + uid, job), put("spec/" + uid, spec),
                                       put("attempt/" + uid + "/000001", attempt), put("progress/" + uid, event)};
    for (int e = 0; e < 8; ++e) mutations.push_back(put(absl::StrFormat("event/job/%s/%012d", uid, e), event));
    store_->commit({std::move(mutations)}, [&left](const auto&) { --left; });
  }
  while (left > 0) absl::SleepFor(absl::Milliseconds(1));
  store_.reset();
  const absl::Time start = absl::Now();
  open();
  const absl::Duration opened = absl::Now() - start;
  const absl::Time live = absl::Now();
  EXPECT_EQ(static_cast<int>(scan_all(*store_, "job/")->size()), jobs);
  std::cout << jobs << " jobs, " << 12 * jobs << " records, " << fs::file_size(path_) / 1'000'000 << " MB: opened in "
            << opened << ", every job read in " << absl::Now() - live;
  const absl::Time checked = absl::Now();
  EXPECT_EQ(store_->check()->damaged, 0);
  std::cout << ", checked in " << absl::Now() - checked << "\n";
}

}  // namespace
}  // namespace titan::store
