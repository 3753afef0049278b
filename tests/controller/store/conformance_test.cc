// Guarantees of every backend. A new backend adds itself to the list at the end.

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/memory_store.h"
#include "controller/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/store/etcd_process.h"

namespace titan::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Store& store() = 0;
  virtual void settle() {}  // Lets queued transactions become durable.
};

class MemoryBackend : public Backend {
 public:
  explicit MemoryBackend(int64_t keep) : store_(keep) {}
  Store& store() override { return store_; }
  void settle() override { store_.run_pending(); }

 private:
  MemoryStore store_;
};

class SqliteBackend : public Backend {
 public:
  explicit SqliteBackend(int64_t keep) {
    static std::atomic<int> next{0};
    path_ = ::testing::TempDir() + "store-" + std::to_string(getpid()) + "-" + std::to_string(next++);
    SqliteOptions options;
    options.keep_changes = keep;
    store_ = *SqliteStore::open(path_, options);
  }
  ~SqliteBackend() override {
    store_.reset();
    for (const char* end : {"", "-wal", "-shm", ".lock"}) unlink((path_ + end).c_str());
  }
  Store& store() override { return *store_; }

 private:
  std::string path_;
  std::unique_ptr<SqliteStore> store_;
};

// All cases use one etcd, with a prefix for each.
class EtcdBackend : public Backend {
 public:
  explicit EtcdBackend(int64_t keep) {
    static std::atomic<int> next{0};
    auto client = std::make_shared<EtcdClient>(EtcdEndpoints{{shared_etcd().address()}});
    ElectorOptions options;
    options.prefix = "case-" + std::to_string(next++) + "/";
    options.name = "conformance";
    auto elector = std::make_unique<Elector>(client, options);
    const absl::Status elected = elector->campaign(absl::Now() + absl::Seconds(20));
    EXPECT_TRUE(elected.ok()) << elected;
    EtcdStoreOptions store_options;
    store_options.keep_changes = keep;
    store_ = *EtcdStore::open(std::move(elector), store_options);
  }
  Store& store() override { return *store_; }

 private:
  std::unique_ptr<EtcdStore> store_;
};

using Factory = std::function<std::unique_ptr<Backend>(int64_t keep_changes)>;

class StoreTest : public ::testing::TestWithParam<std::pair<std::string, Factory>> {
 protected:
  void SetUp() override {
    if (GetParam().first == "Etcd") TITAN_SKIP_WITHOUT_ETCD();
  }
  void make(int64_t keep_changes = 1000) { backend_ = GetParam().second(keep_changes); }
  Store& store() { return backend_->store(); }

  absl::StatusOr<int64_t> commit(std::vector<Mutation> mutations, std::vector<std::string> erased_prefixes = {}) {
    std::promise<absl::StatusOr<int64_t>> promise;
    store().commit({std::move(mutations), WhenFull::kRetry, std::move(erased_prefixes)},
                   [&](const absl::StatusOr<int64_t>& result) { promise.set_value(result); });
    backend_->settle();
    return promise.get_future().get();
  }

  std::string value(const std::string& key) {
    const auto record = store().get(key);
    EXPECT_TRUE(record.ok()) << record.status();
    return record.ok() && *record ? (*record)->value : "(none)";
  }

  std::vector<std::string> keys(const std::string& prefix) {
    std::vector<std::string> found;
    const absl::StatusOr<std::vector<Record>> records = scan_all(store(), prefix);
    for (const Record& record : *records) found.push_back(record.key);
    return found;
  }
  // Returns "key" or "-key" for each change after a revision.
  std::vector<std::string> changed(int64_t after) {
    std::vector<std::string> found;
    const absl::StatusOr<std::vector<RecordChange>> changes = store().changes(after, 1000);
    for (const RecordChange& change : *changes) {
      found.push_back((change.value ? "" : "-") + change.key);
    }
    return found;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(StoreTest, RevisionsGrowByTransaction) {
  make();
  EXPECT_EQ(store().revision(), 0);
  EXPECT_EQ(*commit({put("a", "1"), put("b", "2")}), 1);
  EXPECT_EQ(*commit({put("a", "3")}), 2);
  EXPECT_EQ(store().revision(), 2);
  EXPECT_EQ((*store().get("a"))->revision, 2);
  EXPECT_EQ((*store().get("b"))->revision, 1);
  EXPECT_EQ(value("a"), "3");
}

TEST_P(StoreTest, ValuesMayHoldAnything) {
  make();
  const std::string odd("\0\xff'\"\n", 5);
  ASSERT_TRUE(commit({put("k", odd), put("empty", "")}).ok());
  EXPECT_EQ(value("k"), odd);
  EXPECT_EQ(value("empty"), "");
}

TEST_P(StoreTest, CompareAndSetAbortsTheWholeTransaction) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  Mutation create = put("a", "2");
  create.expected_revision = 0;
  EXPECT_EQ(commit({put("b", "x"), create}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(value("b"), "(none)");
  EXPECT_EQ(store().revision(), 1);
  Mutation update = put("a", "2");
  update.expected_revision = 1;
  EXPECT_TRUE(commit({update}).ok());
  EXPECT_EQ(commit({update}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(value("a"), "2");
}

// Two writers saw the same revision: the first in the queue wins even if both wait for the same fsync.
TEST_P(StoreTest, CompareAndSetSeesEarlierTransactionsOfTheSameGroup) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  std::vector<absl::StatusCode> codes;
  std::promise<void> all;
  for (int i = 0; i < 8; ++i) {
    Mutation update = put("a", std::to_string(i));
    update.expected_revision = 1;
    store().commit({{update}}, [&](const absl::StatusOr<int64_t>& result) {
      codes.push_back(result.status().code());
      if (codes.size() == 8) all.set_value();
    });
  }
  backend_->settle();
  all.get_future().wait();
  EXPECT_EQ(codes[0], absl::StatusCode::kOk);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), absl::StatusCode::kAborted), 7);
  EXPECT_EQ(value("a"), "0");
}

TEST_P(StoreTest, ScansByPrefixInPages) {
  make();
  for (const char* key : {"job/2", "job/1", "job0", "job/3", "joa/9", "job/1/x"})
    ASSERT_TRUE(commit({put(key, key)}).ok());
  const auto first = store().scan("job/", "", 2);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->size(), 2u);
  EXPECT_EQ((*first)[0].key, "job/1");
  EXPECT_EQ((*first)[1].key, "job/1/x");
  const auto rest = store().scan("job/", "job/1/x", 10);
  ASSERT_EQ(rest->size(), 2u);
  EXPECT_EQ((*rest)[1].key, "job/3");
  EXPECT_EQ(scan_all(store(), "job/")->size(), 4u);
}

TEST_P(StoreTest, DeletesAndRecreates) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  ASSERT_TRUE(commit({erase("a"), erase("never")}).ok());
  EXPECT_EQ(value("a"), "(none)");
  EXPECT_TRUE(store().scan("a", "", 9)->empty());
  Mutation create = put("a", "2");
  create.expected_revision = 0;
  EXPECT_TRUE(commit({create}).ok());
  EXPECT_EQ(value("a"), "2");
}

// A watcher that reads the log from any revision sees exactly what happened after it, in order.
TEST_P(StoreTest, TheLogIsAPrefixOfHistory) {
  make();
  std::mt19937 random(7);
  std::map<std::string, std::string> model;
  std::vector<std::map<std::string, std::string>> history = {{}};
  for (int i = 0; i < 200; ++i) {
    const std::string key = "k" + std::to_string(random() % 12);
    if (random() % 4 == 0) {
      model.erase(key);
      ASSERT_TRUE(commit({erase(key), put("n", std::to_string(i))}).ok());
    } else {
      model[key] = std::to_string(i);
      ASSERT_TRUE(commit({put(key, std::to_string(i)), put("n", std::to_string(i))}).ok());
    }
    model["n"] = std::to_string(i);
    history.push_back(model);
  }
  for (const int from : {0, 1, 57, 120, 200}) {
    std::map<std::string, std::string> seen = history[from];
    int64_t cursor = from;
    while (true) {
      const auto changes = store().changes(cursor, 7);
      ASSERT_TRUE(changes.ok());
      if (changes->empty()) break;
      for (const RecordChange& change : *changes) {
        ASSERT_GE(change.revision, cursor);
        cursor = change.revision;
        if (change.value) {
          seen[change.key] = *change.value;
        } else {
          seen.erase(change.key);
        }
      }
    }
    EXPECT_EQ(cursor, 200);
    EXPECT_EQ(seen, history[200]);
  }
}

TEST_P(StoreTest, CompactionIsReportedAndKeepsEveryRecord) {
  make(50);
  ASSERT_TRUE(commit({put("old", "kept"), put("gone", "x")}).ok());
  ASSERT_TRUE(commit({erase("gone")}).ok());
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(commit({put("k" + std::to_string(i % 5), std::to_string(i))}).ok());
  EXPECT_EQ(store().changes(1, 10).status().code(), absl::StatusCode::kOutOfRange);
  const auto recent = store().changes(store().revision() - 10, 100);
  ASSERT_TRUE(recent.ok());
  EXPECT_EQ(recent->size(), 10u);
  EXPECT_EQ(value("old"), "kept");
  EXPECT_EQ(value("gone"), "(none)");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(value("k" + std::to_string(i)), std::to_string(495 + i));
}

TEST_P(StoreTest, CallbacksRunInLogOrderAndAfterDurability) {
  make();
  constexpr int kCount = 300;
  std::vector<int64_t> order;
  std::promise<void> all;
  for (int i = 0; i < kCount; ++i) {
    store().commit({{put("k" + std::to_string(i), "v")}}, [&, i](const absl::StatusOr<int64_t>& revision) {
      order.push_back(*revision);
      EXPECT_TRUE(store().get("k" + std::to_string(i))->has_value());
      EXPECT_GE(store().revision(), *revision);
      if (i == kCount - 1) all.set_value();
    });
  }
  backend_->settle();
  all.get_future().wait();
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(order[i], i + 1);
}

TEST_P(StoreTest, ListenersGetNewRevisions) {
  make();
  std::atomic<int64_t> notified{0};
  auto handle = store().subscribe([&](int64_t revision) { notified = revision; });
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  backend_->settle();
  while (notified != 1) std::this_thread::yield();
  handle.reset();
  ASSERT_TRUE(commit({put("a", "2")}).ok());
  EXPECT_EQ(notified, 1);
}

TEST_P(StoreTest, ErasingMissingKeysChangesNothing) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  EXPECT_EQ(*commit({erase("never")}), 2);
  EXPECT_EQ(*commit({}), 3);
  EXPECT_TRUE(store().changes(1, 10)->empty());
  EXPECT_EQ(*commit({put("a", "2"), erase("a"), put("a", "3")}), 4);
  EXPECT_EQ(store().changes(1, 10)->size(), 3u);
  EXPECT_EQ(value("a"), "3");
}

// History can be purged by the prefix of keys and by age.
TEST_P(StoreTest, PurgesOldRecordsOfAPrefix) {
  make();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(commit({put("event/" + std::to_string(100 + i), "x")}).ok());
  ASSERT_TRUE(commit({put("job/1", "x"), put("event/101", "again")}).ok());
  absl::StatusOr<int64_t> purged = absl::UnknownError("");
  std::atomic<bool> over = false;
  std::thread purger([&] {
    purged = purge(store(), "event/", 20);
    over = true;
  });
  while (!over) {
    backend_->settle();
    std::this_thread::yield();
  }
  purger.join();
  EXPECT_EQ(*purged, 19);  // One of the 20 oldest was written again.
  EXPECT_EQ(scan_all(store(), "event/")->size(), 11u);
  EXPECT_EQ(value("event/101"), "again");
  EXPECT_EQ(value("job/1"), "x");
  EXPECT_EQ(purge(store(), "", 20).status().code(), absl::StatusCode::kInvalidArgument);
}

// A prefix is compared as bytes: with the separator it selects the keys below a name, without it also longer names.
TEST_P(StoreTest, ErasesAllKeysOfAPrefix) {
  make();
  const std::vector<std::string> all = {"event/1", "event/1/a", "event/1/b", "event/10/a", "event/2/a", "evens"};
  std::vector<Mutation> puts;
  for (const std::string& key : all) puts.push_back(put(key, "x"));
  ASSERT_EQ(*commit(puts), 1);
  ASSERT_EQ(*commit({put("job/1", "y")}, {"event/1/"}), 2);
  EXPECT_THAT(keys(""), ElementsAre("evens", "event/1", "event/10/a", "event/2/a", "job/1"));
  EXPECT_THAT(changed(1), ElementsAre("-event/1/a", "-event/1/b", "job/1"));
  ASSERT_EQ(*commit({}, {"event/1"}), 3);
  EXPECT_THAT(keys(""), ElementsAre("evens", "event/2/a", "job/1"));
  ASSERT_EQ(*commit({}, {"evens", "event/", "job/"}), 4);
  EXPECT_THAT(keys(""), ElementsAre());
  EXPECT_EQ(value("event/2/a"), "(none)");
}

TEST_P(StoreTest, APrefixWithoutRecordsChangesNothing) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  EXPECT_EQ(*commit({}, {"b", "a/", "aa"}), 2);
  EXPECT_TRUE(changed(1).empty());
  EXPECT_EQ(value("a"), "1");
}

// The empty string is a prefix of every key; a caller that passes it has lost a name.
TEST_P(StoreTest, AnEmptyPrefixIsRefused) {
  make();
  ASSERT_TRUE(commit({put("a", "1")}).ok());
  EXPECT_EQ(commit({put("b", "2")}, {"x", ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store().revision(), 1);
  EXPECT_EQ(value("b"), "(none)");
  EXPECT_EQ(*commit({put("b", "2")}), 2);
}

// Prefixes are erased before mutations apply; expected revisions refer to the state before the transaction.
TEST_P(StoreTest, PutsSurviveTheErasedPrefixOfTheirTransaction) {
  make();
  ASSERT_TRUE(commit({put("job/1", "old"), put("job/2", "old")}).ok());
  Mutation replace = put("job/1", "new");
  replace.expected_revision = 1;
  ASSERT_EQ(*commit({replace, put("job/3", "new")}, {"job/"}), 2);
  EXPECT_THAT(keys("job/"), ElementsAre("job/1", "job/3"));
  EXPECT_EQ(value("job/1"), "new");
  EXPECT_EQ((*store().get("job/1"))->revision, 2);
  EXPECT_THAT(changed(1), ElementsAre("-job/1", "-job/2", "job/1", "job/3"));
  replace.expected_revision = 1;
  EXPECT_EQ(commit({replace}, {"job/"}).status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(keys("job/"), ElementsAre("job/1", "job/3"));
}

TEST_P(StoreTest, ErasesPutsOfEarlierTransactionsInTheGroup) {
  make();
  ASSERT_TRUE(commit({put("a/1", "x"), put("a/2", "x")}).ok());
  store().commit({{put("a/3", "x"), erase("a/1")}}, nullptr);
  std::promise<absl::StatusOr<int64_t>> last;
  store().commit({{}, WhenFull::kRetry, {"a/"}}, nullptr);
  store().commit({{put("a/4", "x")}}, [&](const absl::StatusOr<int64_t>& result) { last.set_value(result); });
  backend_->settle();
  EXPECT_EQ(*last.get_future().get(), 4);
  EXPECT_THAT(keys("a/"), ElementsAre("a/4"));
  EXPECT_THAT(changed(1), ElementsAre("a/3", "-a/1", "-a/2", "-a/3", "a/4"));
}

// A reader sets aside a record whose value it cannot parse.
TEST_P(StoreTest, QuarantinesARecord) {
  make();
  ASSERT_TRUE(commit({put("job/1", "{"), put("job/2", "{}")}).ok());
  store().set_aside(**store().get("job/1"), "is not JSON");
  ASSERT_TRUE(commit({}).ok());
  EXPECT_THAT(keys("job/"), ElementsAre("job/2"));
  EXPECT_EQ(store().get("job/1").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store().get("job/1").status().message()), HasSubstr("is not JSON"));
  ASSERT_EQ(store().quarantined().size(), 1u);
  const Quarantined aside = store().quarantined()[0];
  EXPECT_EQ(aside.key, "job/1");
  EXPECT_EQ(aside.revision, 1);
  EXPECT_EQ(aside.reason, "is not JSON");
  EXPECT_TRUE(aside.lost);
  ASSERT_TRUE(commit({put("job/1", "{}")}).ok());
  EXPECT_EQ(value("job/1"), "{}");
  ASSERT_EQ(store().quarantined().size(), 1u);  // Its bytes stay.
  EXPECT_FALSE(store().quarantined()[0].lost);
  ASSERT_TRUE(commit({erase("job/1")}).ok());
  EXPECT_EQ(value("job/1"), "(none)");
}

TEST_P(StoreTest, RewrittenRecordIsNotQuarantined) {
  make();
  ASSERT_TRUE(commit({put("a", "bad")}).ok());
  const Record read = **store().get("a");
  ASSERT_TRUE(commit({put("a", "good")}).ok());
  store().set_aside(read, "makes no sense");
  ASSERT_TRUE(commit({}).ok());
  EXPECT_EQ(value("a"), "good");
  EXPECT_TRUE(store().quarantined().empty());
}

TEST_P(StoreTest, ErasingAPrefixErasesItsQuarantinedRecords) {
  make();
  ASSERT_TRUE(commit({put("job/1", "bad"), put("job/2", "bad")}).ok());
  store().set_aside(**store().get("job/1"), "makes no sense");
  store().set_aside(**store().get("job/2"), "makes no sense");
  ASSERT_TRUE(commit({}).ok());
  ASSERT_TRUE(commit({}, {"job/1"}).ok());
  EXPECT_EQ(value("job/1"), "(none)");
  EXPECT_EQ(store().get("job/2").status().code(), absl::StatusCode::kDataLoss);
}

TEST_P(StoreTest, HasAnIdAndAnEpoch) {
  make();
  EXPECT_FALSE(store().id().empty());
  EXPECT_GT(store().epoch(), 0);
  EXPECT_EQ(store().revision_before(absl::Now() - absl::Hours(1)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, StoreTest,
    ::testing::Values(
        std::make_pair("Memory", Factory([](int64_t keep) { return std::make_unique<MemoryBackend>(keep); })),
        std::make_pair("Sqlite", Factory([](int64_t keep) { return std::make_unique<SqliteBackend>(keep); })),
        std::make_pair("Etcd", Factory([](int64_t keep) { return std::make_unique<EtcdBackend>(keep); }))),
    [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace titan::store
