// Power loss at any write, disk errors and flipped bits: acknowledged transactions survive, and nothing is returned
// that was not written. Every case is a seed.

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "controller/store/sqlite_store.h"
#include "gtest/gtest.h"
#include "tests/controller/store/faulty_vfs.h"

namespace titan::store {
namespace {

using Model = std::map<std::string, std::string>;

class DiskFaultsTest : public ::testing::Test {
 protected:
  DiskFaultsTest() {
    std::string pattern = ::testing::TempDir() + "titan-faults-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~DiskFaultsTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<SqliteStore>> open(const FaultyDisk& disk) {
    SqliteOptions options;
    options.vfs = disk.name();
    options.keep_changes = 60;
    options.fold_after = absl::ZeroDuration();  // Checkpoints whenever nothing waits.
    options.full_retry = absl::Milliseconds(1);
    options.check_after = absl::InfiniteDuration();
    options.on_fatal = [this](const absl::Status&) { ++fatal_; };
    return SqliteStore::open(folder_ + "/titan.db", options);
  }

  static std::vector<Mutation> random_mutations(std::mt19937& random, Model& model) {
    std::vector<Mutation> mutations;
    for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
      const std::string key = absl::StrCat("key/", random() % 40);
      if (random() % 4 == 0) {
        mutations.push_back(erase(key));
        model.erase(key);
      } else {
        mutations.push_back(put(key, std::string(1 + random() % 900, static_cast<char>('a' + random() % 26))));
        model[key] = *mutations.back().value;
      }
    }
    return mutations;
  }

  // Commits up to `count` transactions until the store fails, and adds the records after each to history_. Returns how
  // many were acknowledged: the first ones.
  int write(SqliteStore& store, std::mt19937& random, int count) {
    int acknowledged = 0;
    for (int sent = 0; sent < count;) {
      std::vector<std::future<absl::StatusOr<int64_t>>> results;
      for (uint32_t i = 0; i < 1 + random() % 6; ++i, ++sent) {
        Model model = history_.back();
        auto promise = std::make_shared<std::promise<absl::StatusOr<int64_t>>>();
        results.push_back(promise->get_future());
        store.commit({random_mutations(random, model), WhenFull::kRetry},
                     [promise](const absl::StatusOr<int64_t>& result) { promise->set_value(result); });
        history_.push_back(std::move(model));
      }
      for (auto& result : results) {
        const absl::StatusOr<int64_t> revision = result.get();
        if (!revision.ok()) {
          EXPECT_EQ(revision.status().code(), absl::StatusCode::kUnavailable);
          return acknowledged;
        }
        ++acknowledged;
      }
      if (random() % 16 == 0) (void)store.shrink();
    }
    return acknowledged;
  }

  // Checks that the store has a prefix of what was sent, with at least the acknowledged transactions.
  void expect_prefix(const SqliteStore& store, int64_t acknowledged) {
    const int64_t revision = store.revision();
    ASSERT_GE(revision, acknowledged);
    ASSERT_LT(revision, static_cast<int64_t>(history_.size()));
    const auto records = scan_all(store, "");
    ASSERT_TRUE(records.ok()) << records.status();
    Model found;
    for (const Record& record : *records) found[record.key] = record.value;
    EXPECT_EQ(found, history_[static_cast<size_t>(revision)]);
    EXPECT_TRUE(store.quarantined().empty());
    history_.resize(static_cast<size_t>(revision) + 1);
  }

  std::string folder_;
  std::atomic<int> fatal_{0};
  std::vector<Model> history_ = {{}};
};

TEST_F(DiskFaultsTest, PowerMayBeLostAtAnyWrite) {
  int64_t unfinished = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    history_ = {{}};
    auto disk = std::make_unique<FaultyDisk>();
    int64_t acknowledged = 0;
    for (int life = 0; life < 3; ++life) {
      disk->lose_power_after(random() % 200);
      auto store = open(*disk);
      if (store.ok()) {
        if (life > 0) expect_prefix(**store, acknowledged);
        acknowledged = (*store)->revision() + write(**store, random, 60);
        store->reset();
      }
      unfinished += static_cast<int64_t>(history_.size()) - 1 > acknowledged ? 1 : 0;
      disk = disk->after_power_loss(random);
    }
    const auto store = open(*disk);
    ASSERT_TRUE(store.ok()) << store.status();
    expect_prefix(**store, acknowledged);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GT(unfinished, 100);  // The power was lost with transactions in flight.
}

// A single disk error: the store either does not notice, because no operation met it, or ends. A sync is never
// repeated.
TEST_F(DiskFaultsTest, DiskErrorEndsTheStoreWithoutLoss) {
  using Operation = FaultyDisk::Operation;
  int ended_by_sync = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    history_ = {{}};
    FaultyDisk disk;
    auto store = open(disk);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto operation = static_cast<Operation>(seed % 3);
    const int before = fatal_;
    disk.fail_once(operation, random() % 60);
    const int64_t acknowledged = write(**store, random, 80);
    const bool ended = acknowledged < static_cast<int64_t>(history_.size()) - 1;
    store->reset();
    // Everything may be acknowledged before the log is folded, which may then fail.
    EXPECT_LE(fatal_ - before, disk.failed() ? 1 : 0);
    EXPECT_GE(fatal_ - before, ended ? 1 : 0);
    if (operation == Operation::kSync && ended) ++ended_by_sync;
    const auto found = disk.after_power_loss(random);
    const auto again = open(*found);
    ASSERT_TRUE(again.ok()) << again.status();
    expect_prefix(**again, acknowledged);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GT(ended_by_sync, 20);
}

TEST_F(DiskFaultsTest, FullDiskLosesNoTransaction) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    history_ = {{}};
    FaultyDisk disk;
    auto store = open(disk);
    ASSERT_TRUE(store.ok()) << store.status();
    disk.set_capacity(80'000 + random() % 200'000);
    std::vector<std::future<absl::StatusOr<int64_t>>> results;
    for (int i = 0; i < 150; ++i) {
      Model model = history_.back();
      auto promise = std::make_shared<std::promise<absl::StatusOr<int64_t>>>();
      results.push_back(promise->get_future());
      (*store)->commit({random_mutations(random, model), WhenFull::kRetry},
                       [promise](const absl::StatusOr<int64_t>& result) { promise->set_value(result); });
      history_.push_back(std::move(model));
    }
    while (results.back().wait_for(std::chrono::milliseconds(3)) == std::future_status::timeout) {
      disk.set_capacity(0);  // Somebody frees space.
    }
    for (auto& result : results) ASSERT_TRUE(result.get().ok());
    store->reset();
    store = open(disk);
    ASSERT_TRUE(store.ok()) << store.status();
    expect_prefix(**store, 150);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_EQ(fatal_, 0);
}

// One bit of a closed file flips. Everything that is read afterwards is correct or reported as damaged.
TEST_F(DiskFaultsTest, AFlippedBitIsNeverServed) {
  std::mt19937 random(1);
  FaultyDisk disk;
  std::vector<RecordChange> history;
  {
    auto store = open(disk);
    ASSERT_TRUE(store.ok()) << store.status();
    write(**store, random, 400);
    const int64_t first = (*store)->revision() - 10;
    history = *(*store)->changes(first, 1 << 20);
  }
  const Model& model = history_.back();
  const int64_t last = static_cast<int64_t>(history_.size()) - 1;
  int refused = 0, set_aside = 0, unnoticed = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    const auto flipped = disk.copy();
    std::string& file = *flipped->content("titan.db");
    const size_t at = random() % file.size();
    file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
    SCOPED_TRACE(at);
    const auto store = open(*flipped);
    if (!store.ok()) {
      EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
      ++refused;
      continue;
    }
    EXPECT_EQ((*store)->revision(), last);
    std::set<std::string> lost;
    for (const auto& [key, value] : model) {
      const auto record = (*store)->get(key);
      if (!record.ok()) {
        EXPECT_EQ(record.status().code(), absl::StatusCode::kDataLoss) << record.status();
        lost.insert(key);
      } else {
        ASSERT_TRUE(record->has_value()) << key;
        EXPECT_EQ((*record)->value, value) << key;
      }
    }
    EXPECT_FALSE((*store)->get("never")->has_value());
    const auto records = scan_all(**store, "");
    if (records.ok()) {
      Model found;
      for (const Record& record : *records) found[record.key] = record.value;
      for (const auto& [key, value] : model) {
        if (lost.contains(key)) continue;
        EXPECT_EQ(found[key], value) << key;
      }
      EXPECT_EQ(found.size(), model.size() - lost.size());
    } else {
      EXPECT_EQ(records.status().code(), absl::StatusCode::kDataLoss);
    }
    const auto changes = (*store)->changes(last - 10, 1 << 20);
    if (changes.ok()) {
      ASSERT_EQ(changes->size(), history.size());
      for (size_t i = 0; i < history.size(); ++i) {
        EXPECT_EQ((*changes)[i].key, history[i].key);
        EXPECT_EQ((*changes)[i].value, history[i].value);
        EXPECT_EQ((*changes)[i].revision, history[i].revision);
      }
    } else {
      EXPECT_EQ(changes.status().code(), absl::StatusCode::kOutOfRange);
    }
    (lost.empty() && (*store)->quarantined().empty() ? unnoticed : set_aside) += 1;
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  std::cout << "of 600 flips " << refused << " refused the file, " << set_aside << " quarantined something, "
            << unnoticed << " changed nothing that was read\n";
  EXPECT_GT(set_aside, 20);
}

}  // namespace
}  // namespace titan::store
