// Somebody deletes or replaces a store's files while it is open: nothing more is acknowledged, and nothing acknowledged
// is lost.

#include <sys/stat.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controller/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class LostFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    above_ = ::testing::TempDir() + "titan-lost-XXXXXX";
    ASSERT_NE(mkdtemp(above_.data()), nullptr);
    folder_ = above_ + "/state";
    fs::create_directory(folder_);
    SqliteOptions options;
    options.fold_after = absl::Hours(1);  // Acknowledged transactions are only in the log.
    options.on_fatal = [this](const absl::Status& why) {
      const std::lock_guard lock(mutex_);
      fatal_ = why;
      ended_.notify_all();
    };
    store_ = *SqliteStore::open(folder_ + "/titan.db", options);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(commit(absl::StrCat("k", i)).ok());
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(above_);
  }
  absl::StatusOr<int64_t> commit(const std::string& key) {
    std::promise<absl::StatusOr<int64_t>> promise;
    store_->commit({{put(key, std::string(1000, 'x'))}, WhenFull::kRefuse},
                   [&](const absl::StatusOr<int64_t>& r) { promise.set_value(r); });
    return promise.get_future().get();
  }
  // Returns why the store ended.
  std::string end() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return fatal_.has_value(); });
    return std::string(fatal_->message());
  }
  std::string rescued() const {
    for (const auto& item : fs::directory_iterator(folder_)) {
      if (absl::StrContains(item.path().filename().string(), kRescued)) return item.path().string();
    }
    return "";
  }
  void expect_all(const std::string& path) const {
    ASSERT_TRUE(check_store(path).ok()) << check_store(path).status();
    struct stat file {};
    ASSERT_EQ(::stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u) << "configurations may hold secrets";
    const auto copy = SqliteStore::open(path);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ((*copy)->id(), store_->id());
    for (int i = 0; i < 20; ++i) EXPECT_TRUE((*copy)->get(absl::StrCat("k", i))->has_value()) << i;
  }

  std::string above_, folder_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::Status> fatal_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(LostFilesTest, NothingIsAcknowledgedInADeletedFile) {
  fs::remove_all(folder_);
  EXPECT_EQ(commit("late").status().code(), absl::StatusCode::kUnavailable);
  const std::string why = end();
  EXPECT_THAT(why, HasSubstr("was deleted or moved away"));
  EXPECT_THAT(why, HasSubstr(absl::StrCat("saved to ", rescued())));
  expect_all(rescued());
  EXPECT_EQ(commit("later").status().code(), absl::StatusCode::kUnavailable);
}

// A deleted file is detected even if nobody writes.
TEST_F(LostFilesTest, CheckFindsEachDeletedFile) {
  store_->check_files();
  ASSERT_TRUE(commit("k").ok());
  fs::remove(folder_ + "/titan.db-wal");
  store_->check_files();
  EXPECT_THAT(end(), HasSubstr("titan.db-wal was deleted"));
  expect_all(rescued());
}

TEST_F(LostFilesTest, StoreThatReplacedItIsNotTouched) {
  fs::rename(folder_, above_ + "/moved");
  fs::create_directory(folder_);
  const std::string other = SqliteStore::open(folder_ + "/titan.db").value()->id();
  store_->check_files();
  EXPECT_THAT(end(), HasSubstr("was replaced"));
  EXPECT_EQ(SqliteStore::open(folder_ + "/titan.db").value()->id(), other);
  expect_all(rescued());
}

TEST_F(LostFilesTest, DeletedLockFileEndsTheStore) {
  fs::remove(folder_ + "/titan.db.lock");
  store_->check_files();
  EXPECT_THAT(end(), HasSubstr("titan.db.lock was deleted"));
}

TEST_F(LostFilesTest, ImageNeedsNoFileOnDisk) {
  fs::remove_all(folder_);
  const absl::StatusOr<StoreImage> image = store_->image();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->info.cluster, store_->id());
  EXPECT_EQ(image->info.bytes, static_cast<int64_t>(image->bytes.size()));
  EXPECT_EQ(image->info.revision, store_->revision());
  const std::string path = above_ + "/copy.db";
  std::ofstream(path, std::ios::binary) << image->bytes;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  expect_all(path);
}

// An image is checked like a copy on disk.
TEST_F(LostFilesTest, ADamagedStoreGivesNoImage) {
  const std::string file = folder_ + "/titan.db";
  store_.reset();
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const size_t value = bytes.find(std::string(500, 'x'));
  ASSERT_NE(value, std::string::npos);
  bytes[value + 10] = 'y';
  std::ofstream(file, std::ios::binary) << bytes;
  store_ = *SqliteStore::open(file);
  EXPECT_EQ(store_->image().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::store
