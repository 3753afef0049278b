// Backups of a store in use, and their restore.

#include "controller/store/backup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host/file_io.h"
#include "controller/store/sqlite.h"
#include "controller/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class BackupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "titan-backup-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    SqliteOptions options;
    options.fold_after = absl::Milliseconds(20);
    store_ = *SqliteStore::open(path("titan.db"), options);
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  int64_t write(const std::string& key, const std::string& value) {
    std::promise<int64_t> written;
    store_->commit({{put(key, value)}, WhenFull::kRetry}, [&](const auto& revision) { written.set_value(*revision); });
    return written.get_future().get();
  }
  static int mode(const std::string& file) {
    struct stat found {};
    return ::stat(file.c_str(), &found) == 0 ? static_cast<int>(found.st_mode & 0777) : -1;
  }
  // Changes one byte in the middle of a record's value.
  static void damage(const std::string& file, const std::string& where) {
    std::ifstream in(file, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    const size_t at = bytes.find(where);
    ASSERT_NE(at, std::string::npos);
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out.put('#');
  }

  std::string folder_;
  std::unique_ptr<SqliteStore> store_;
};

// A backup made during writes has every transaction that was acknowledged before it, and none in part.
TEST_F(BackupTest, IsConsistentWhileTheStoreIsWritten) {
  const int64_t before = write("a", "1");
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      std::promise<void> done;
      const std::string value = std::to_string(i);
      store_->commit({{put("x", value), put("y", value)}, WhenFull::kRetry}, [&](const auto&) { done.set_value(); });
      done.get_future().get();
    }
  });
  const absl::StatusOr<StoreInfo> made = copy_store(path("titan.db"), path("copy"));
  stop = true;
  writer.join();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->cluster, store_->id());
  EXPECT_GE(made->revision, before);
  EXPECT_EQ(made->bytes, static_cast<int64_t>(fs::file_size(path("copy"))));
  EXPECT_EQ(mode(path("copy")), 0600);
  const absl::StatusOr<StoreInfo> back = restore_store(path("copy"), path("state"));
  ASSERT_TRUE(back.ok()) << back.status();
  const auto restored = SqliteStore::open(path("state/titan.db"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->id(), store_->id());
  EXPECT_EQ((*restored)->revision(), made->revision);
  EXPECT_EQ((**(*restored)->get("a")).value, "1");
  const auto x = *(*restored)->get("x"), y = *(*restored)->get("y");
  EXPECT_EQ(x.has_value(), y.has_value());
  if (x && y) {
    EXPECT_EQ(x->value, y->value);
  }
  EXPECT_EQ(mode(path("state")), 0700);
  EXPECT_EQ(mode(path("state/titan.db")), 0600);
}

// A controller that runs as a service has a separate user, but root restores its store.
TEST_F(BackupTest, RestoredFilesBelongToTheFoldersOwner) {
  constexpr uid_t kService = 61234;
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(copy_store(path("titan.db"), path("copy")).ok());
  fs::create_directory(path("state"));
  if (is_root) {
    ASSERT_EQ(::chown(path("state").c_str(), kService, kService), 0);
  }
  ASSERT_TRUE(restore_store(path("copy"), path("state")).ok());
  struct stat file {};
  ASSERT_EQ(::stat(path("state/titan.db").c_str(), &file), 0);
  EXPECT_EQ(file.st_uid, is_root ? kService : ::geteuid());
  EXPECT_EQ(mode(path("state/titan.db")), 0600);
}

TEST_F(BackupTest, DamagedBackupIsNotRestored) {
  write("k", "a value that can be found");
  ASSERT_TRUE(copy_store(path("titan.db"), path("copy")).ok());
  damage(path("copy"), "a value that can be found");
  const absl::Status refused = restore_store(path("copy"), path("state")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("record 'k'"));
  EXPECT_FALSE(fs::exists(path("state/titan.db")));
  std::ofstream(path("text")) << "not a database at all, and long enough to be looked at as one";
  EXPECT_FALSE(restore_store(path("text"), path("state")).ok());
  EXPECT_EQ(restore_store(path("none"), path("state")).status().code(), absl::StatusCode::kNotFound);
}

// A store of another schema is neither opened nor restored, with the same message everywhere, and stays unchanged.
TEST_F(BackupTest, AStoreOfAnotherSchemaIsRefused) {
  store_.reset();
  const std::pair<int, const char*> others[] = {
      {99, "titan.db: has schema version 99 and this titan-controller knows 2; use the newer titan-controller"},
      {1, "titan.db: has schema version 1, which an unreleased titan-controller wrote, but this one knows only 2"}};
  for (const auto& [version, words] : others) {
    {
      sqlite3* raw = nullptr;
      ASSERT_EQ(sqlite3_open(path("titan.db").c_str(), &raw), SQLITE_OK);
      const Database database(raw);
      ASSERT_TRUE(
          execute(raw, absl::StrCat("UPDATE meta SET value = ", version, " WHERE CAST(key AS TEXT) = 'schema_version'"))
              .ok());
    }
    const absl::Status opened = SqliteStore::open(path("titan.db")).status();
    const absl::StatusOr<std::string> before = host::read_file(path("titan.db"));
    for (const absl::Status& refused :
         {opened, SqliteStore::open(path("titan.db")).status(), check_store(path("titan.db")).status(),
          restore_store(path("titan.db"), path("state")).status()}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(words));
    }
    EXPECT_EQ(*host::read_file(path("titan.db")), *before);
    EXPECT_FALSE(fs::exists(path("state/titan.db")));
  }
}

TEST_F(BackupTest, ExistingFilesAreNotReplaced) {
  ASSERT_TRUE(copy_store(path("titan.db"), path("copy")).ok());
  EXPECT_EQ(copy_store(path("titan.db"), path("copy")).status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status refused = restore_store(path("copy"), folder_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not empty"));
}

TEST_F(BackupTest, StoreIsPrivateToItsOwner) {
  write("k", "v");
  EXPECT_EQ(mode(path("titan.db")), 0600);
  EXPECT_EQ(mode(path("titan.db-wal")), 0600);
  store_.reset();
  ASSERT_EQ(::chmod(path("titan.db").c_str(), 0644), 0);  // Mode of files from older versions.
  store_ = *SqliteStore::open(path("titan.db"));
  EXPECT_EQ(mode(path("titan.db")), 0600);
}

// A plain copy of the database file without its log is never minutes out of date.
TEST_F(BackupTest, LogIsFoldedBackWhenIdle) {
  write("k", "what was just written");
  const auto in_database = [&] {
    std::ifstream in(path("titan.db"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {}).find("what was just written") != std::string::npos;
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!in_database() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(in_database());
}

}  // namespace
}  // namespace titan::store
