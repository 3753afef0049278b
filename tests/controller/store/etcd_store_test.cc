// Several controllers on one etcd: they take over, are paused, and lose etcd in the middle of a write.

#include "controller/store/etcd/etcd_store.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/store/etcd_process.h"
#include "tests/controller/store/etcd_proxy.h"

namespace titan::store {
namespace {

using ::testing::HasSubstr;

struct Controller {
  std::unique_ptr<EtcdStore> store;
  std::shared_ptr<std::atomic<int>> lost = std::make_shared<std::atomic<int>>(0);
};

class EtcdStoreTest : public ::testing::Test {
 protected:
  EtcdStoreTest() : prefix_(absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), "/")) {}

  void SetUp() override { TITAN_SKIP_WITHOUT_ETCD(); }

  static std::shared_ptr<EtcdClient> client(const std::string& address = shared_etcd().address()) {
    return std::make_shared<EtcdClient>(EtcdEndpoints{{address}});
  }

  std::unique_ptr<Elector> elector(const std::string& name, absl::Duration lease = absl::Seconds(1),
                                   const std::string& address = shared_etcd().address()) const {
    ElectorOptions options;
    options.prefix = prefix_;
    options.name = name;
    options.lease = lease;
    options.keepalive = absl::Milliseconds(200);
    options.poll = absl::Milliseconds(20);
    return std::make_unique<Elector>(client(address), options);
  }

  absl::StatusOr<Controller> start(const std::string& name, EtcdStoreOptions options = {},
                                   absl::Duration lease = absl::Seconds(1),
                                   const std::string& address = shared_etcd().address()) const {
    std::unique_ptr<Elector> running = elector(name, lease, address);
    const absl::Status elected = running->campaign(absl::Now() + absl::Seconds(20));
    if (!elected.ok()) return elected;
    Controller controller;
    options.on_lost = [lost = controller.lost](const absl::Status&) { ++*lost; };
    absl::StatusOr<std::unique_ptr<EtcdStore>> opened = EtcdStore::open(std::move(running), std::move(options));
    if (!opened.ok()) return opened.status();
    controller.store = *std::move(opened);
    return controller;
  }

  static absl::StatusOr<int64_t> commit(Store& store, std::vector<Mutation> mutations,
                                        WhenFull when_full = WhenFull::kRetry) {
    std::promise<absl::StatusOr<int64_t>> promise;
    store.commit({std::move(mutations), when_full},
                 [&](const absl::StatusOr<int64_t>& result) { promise.set_value(result); });
    return promise.get_future().get();
  }

  static std::string value(const Store& store, const std::string& key) {
    const auto record = store.get(key);
    return record.ok() && *record ? (*record)->value : "(none)";
  }

  // Changes etcd directly, without the controllers.
  void change_etcd(const std::function<void(Operations&)>& change) const {
    etcdserverpb::TxnRequest request;
    change(*request.mutable_success());
    ASSERT_TRUE(client()->txn(request).ok());
  }
  std::vector<std::string> keys(const std::string& begin) const {
    etcdserverpb::RangeRequest request = read_of(prefix_ + begin);
    request.set_range_end(prefix_end(prefix_ + begin));
    std::vector<std::string> found;
    const absl::StatusOr<etcdserverpb::RangeResponse> answer = client()->range(request);
    for (const etcdserverpb::KeyValue& pair : answer->kvs()) found.push_back(pair.key());
    return found;
  }

  const std::string prefix_;
};

TEST_F(EtcdStoreTest, TheSecondWaitsUntilTheFirstResigns) {
  Controller first =
      *start("first:7700", {}, absl::Seconds(60));  // The lease alone would keep the second controller waiting.
  ASSERT_TRUE(commit(*first.store, {put("a", "1")}).ok());
  const absl::Status waiting = elector("second:7700")->campaign(absl::Now() + absl::Milliseconds(100));
  EXPECT_EQ(waiting.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waiting.message()), HasSubstr("first:7700 leads"));
  const int64_t epoch = first.store->epoch();
  const std::string id = first.store->id();
  first.store.reset();
  Controller second = *start("second:7700");
  EXPECT_GT(second.store->epoch(), epoch);
  EXPECT_EQ(second.store->id(), id);
  EXPECT_EQ(value(*second.store, "a"), "1");
  EXPECT_EQ(*commit(*second.store, {put("a", "2")}), 2);
  EXPECT_EQ(*first.lost, 0);  // The first controller did not lose the lease to another one.
}

// A leader's process is paused, its lease expires, and another controller leads and writes: later writes of the first
// fail, even queued ones, and it gets one notification.
TEST_F(EtcdStoreTest, PausedFormerLeaderWritesNothing) {
  Controller first = *start("first");
  ASSERT_TRUE(commit(*first.store, {put("a", "1")}).ok());
  first.store->elector().withhold(true);
  Controller second = *start("second");
  ASSERT_TRUE(commit(*second.store, {put("a", "2")}).ok());
  EXPECT_EQ(commit(*first.store, {put("a", "stale")}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(commit(*first.store, {put("b", "stale")}).status().code(), absl::StatusCode::kUnavailable);
  while (*first.lost == 0) std::this_thread::yield();
  EXPECT_EQ(*first.lost, 1);
  EXPECT_EQ(first.store->revision(), 1);
  EXPECT_EQ(value(*second.store, "a"), "2");
  first.store.reset();  // Resigning without the lease takes nothing from the second controller.
  EXPECT_EQ(*commit(*second.store, {put("c", "3")}), 3);
  second.store.reset();
  const Controller third = *start("third");
  EXPECT_EQ(value(*third.store, "a"), "2");
  EXPECT_EQ(value(*third.store, "b"), "(none)");
}

// Without a write, keepalives detect the loss.
TEST_F(EtcdStoreTest, ALostLeaseIsNoticedWithoutAWrite) {
  Controller first = *start("first");
  first.store->elector().withhold(true);
  const Controller second = *start("second");
  EXPECT_EQ(*first.lost, 0);
  first.store->elector().withhold(false);
  while (*first.lost == 0) std::this_thread::yield();
  EXPECT_FALSE(first.store->elector().leading().ok());
  EXPECT_EQ(commit(*first.store, {put("a", "x")}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EtcdStoreTest, UnreachableMembersAreSkipped) {
  ElectorOptions options;
  options.prefix = prefix_;
  options.name = "one";
  auto both = std::make_shared<EtcdClient>(EtcdEndpoints{{"127.0.0.1:1", shared_etcd().address()}});
  auto running = std::make_unique<Elector>(both, options);
  ASSERT_TRUE(running->campaign(absl::Now() + absl::Seconds(20)).ok());
  const auto store = *EtcdStore::open(std::move(running));
  EXPECT_EQ(*commit(*store, {put("a", "1")}), 1);
}

// A former leader's write is still in flight: whenever it arrives, it fails.
TEST_F(EtcdStoreTest, LateWriteOfAFormerLeaderFails) {
  EtcdProxy proxy(shared_etcd().address());
  Controller first = *start("first", {}, absl::Seconds(1), proxy.address());
  ASSERT_TRUE(commit(*first.store, {put("a", "1")}).ok());
  const size_t before = proxy.sent().size();
  proxy.set_fate([](int) { return EtcdProxy::Fate::kHoldBack; });
  std::promise<absl::StatusOr<int64_t>> stale;
  first.store->commit({{put("a", "stale")}}, [&](const auto& result) { stale.set_value(result); });
  while (proxy.held_back() == 0) std::this_thread::yield();
  first.store->elector().withhold(true);
  Controller second = *start("second");
  ASSERT_EQ(*commit(*second.store, {put("a", "2")}), 2);
  const std::vector<etcdserverpb::TxnRequest> sent = proxy.sent();
  ASSERT_GT(sent.size(), before);
  for (size_t i = before; i < sent.size(); ++i) {
    const absl::StatusOr<etcdserverpb::TxnResponse> late = proxy.deliver(sent[i]);
    ASSERT_TRUE(late.ok()) << late.status();
    EXPECT_FALSE(late->succeeded());
  }
  proxy.set_fate(nullptr);
  EXPECT_EQ(stale.get_future().get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(value(*first.store, "a"), "1");
  second.store.reset();
  EXPECT_EQ(value(*start("third")->store, "a"), "2");
}

// Answers and requests of every kind are lost: each transaction is applied once and gets its revision.
TEST_F(EtcdStoreTest, LostAnswersAreRecovered) {
  EtcdProxy proxy(shared_etcd().address());
  proxy.set_fate([](int number) {
    return number % 3 == 0 ? EtcdProxy::Fate::kLoseAnswer
                           : (number % 5 == 0 ? EtcdProxy::Fate::kHoldBack : EtcdProxy::Fate::kPass);
  });
  EtcdStoreOptions options;
  options.value_bytes = 1000;
  std::string id;
  {
    Controller one = *start("one", options, absl::Seconds(60), proxy.address());
    id = one.store->id();
    for (int64_t i = 1; i <= 12; ++i) {
      ASSERT_EQ(*commit(*one.store, {put(absl::StrCat("k", i), std::string(i % 4 == 0 ? 3000 : 10, 'x'))}), i);
      ASSERT_TRUE(i % 5 != 0 || one.store->snapshot().ok());
    }
    EXPECT_EQ(*one.lost, 0);
  }
  const Controller two = *start("two");
  EXPECT_EQ(two.store->id(), id);
  EXPECT_EQ(two.store->revision(), 12);
  EXPECT_EQ(scan_all(*two.store, "k")->size(), 12u);
  EXPECT_EQ(value(*two.store, "k12"), std::string(3000, 'x'));
}

// Every request reaches etcd once more, much later and in any order, while the same process leads.
TEST_F(EtcdStoreTest, LateDuplicatesChangeNothing) {
  EtcdProxy proxy(shared_etcd().address());
  EtcdStoreOptions options;
  options.value_bytes = 1000;
  options.compact_etcd = false;
  Controller one = *start("one", options, absl::Seconds(60), proxy.address());
  int64_t last = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) {
      const std::string bytes(i % 3 == 0 ? 3000 : 10, static_cast<char>('a' + round));
      last = *commit(*one.store, {put(absl::StrCat("k", i), bytes), erase("k9")});
    }
    ASSERT_TRUE(round == 2 || one.store->snapshot().ok());
  }
  std::vector<etcdserverpb::TxnRequest> sent = proxy.sent();
  for (const etcdserverpb::TxnRequest& request : sent) ASSERT_TRUE(proxy.deliver(request).ok());
  std::mt19937 random(3);
  std::shuffle(sent.begin(), sent.end(), random);
  for (const etcdserverpb::TxnRequest& request : sent) ASSERT_TRUE(proxy.deliver(request).ok());
  ASSERT_EQ(*commit(*one.store, {put("after", "x")}), last + 1);
  const std::vector<Record> expected = *scan_all(*one.store, "");
  one.store.reset();
  const absl::StatusOr<Controller> two = start("two", options);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->store->revision(), last + 1);
  const std::vector<Record> records = *scan_all(*two->store, "");
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].key, expected[i].key);
    EXPECT_EQ(records[i].value, expected[i].value);
    EXPECT_EQ(records[i].revision, expected[i].revision);
  }
}

// etcd no longer answers: closing takes bounded time, and reports unknown results as such.
TEST_F(EtcdStoreTest, ClosingWithoutEtcdEnds) {
  EtcdProxy proxy(shared_etcd().address());
  EtcdStoreOptions options;
  options.close_timeout = absl::Milliseconds(100);
  Controller one = *start("one", options, absl::Seconds(60), proxy.address());
  proxy.set_fate([](int) { return EtcdProxy::Fate::kHoldBack; });
  std::promise<absl::StatusOr<int64_t>> unknown;
  one.store->commit({{put("a", "1")}}, [&](const auto& result) { unknown.set_value(result); });
  while (proxy.held_back() == 0) std::this_thread::yield();
  one.store.reset();
  EXPECT_EQ(unknown.get_future().get().status().code(), absl::StatusCode::kUnavailable);
}

// etcd is killed repeatedly in the middle of writes. Every transaction gets its answer in the end, and each is in the
// log once.
TEST_F(EtcdStoreTest, EtcdMayBeKilledInTheMiddleOfWrites) {
  constexpr int kKills = 3;
  std::vector<int64_t> answered;
  int64_t sent = 0;
  {
    Controller one = *start("one");
    std::atomic<int64_t> acknowledged{0};
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      while (!stop) {
        std::vector<std::future<absl::StatusOr<int64_t>>> results;
        for (int i = 0; i < 20; ++i) {
          auto promise = std::make_shared<std::promise<absl::StatusOr<int64_t>>>();
          results.push_back(promise->get_future());
          one.store->commit({{put(absl::StrCat("n/", sent++), "x"), put("last", "x")}},
                            [promise](const absl::StatusOr<int64_t>& result) { promise->set_value(result); });
        }
        for (auto& result : results) {
          const absl::StatusOr<int64_t> revision = result.get();
          ASSERT_TRUE(revision.ok()) << revision.status();
          answered.push_back(*revision);
          ++acknowledged;
        }
      }
    });
    for (int kill = 0; kill < kKills; ++kill) {
      const int64_t before = acknowledged;
      while (acknowledged < before + 200) std::this_thread::yield();
      shared_etcd().kill();
      shared_etcd().start();
    }
    const int64_t before = acknowledged;
    while (acknowledged < before + 20) std::this_thread::yield();
    stop = true;
    writer.join();
    EXPECT_EQ(*one.lost, 0);
  }
  for (size_t i = 0; i < answered.size(); ++i) ASSERT_EQ(answered[i], static_cast<int64_t>(i) + 1);
  const Controller two = *start("two");
  EXPECT_EQ(two.store->revision(), sent);
  std::map<std::string, int> times;
  const auto changes = two.store->changes(0, 1 << 30);
  ASSERT_TRUE(changes.ok());
  for (const RecordChange& change : *changes) ++times[change.key];
  for (int64_t i = 0; i < sent; ++i) ASSERT_EQ(times[absl::StrCat("n/", i)], 1) << i;
  EXPECT_EQ(times["last"], sent);
}

// A transaction may have values larger than an etcd request, and more changes than etcd allows in one.
TEST_F(EtcdStoreTest, TransactionsMayExceedEtcdLimits) {
  const std::string large(5 << 20, 'x');
  {
    Controller one = *start("one");
    ASSERT_EQ(*commit(*one.store, {put("large", large), put("small", "1")}), 1);
    std::vector<Mutation> many;
    many.reserve(2000);
    for (int i = 0; i < 2000; ++i) many.push_back(put(absl::StrCat("k", i), std::to_string(i)));
    ASSERT_EQ(*commit(*one.store, many), 2);
  }
  EXPECT_EQ(keys("part/").size(), 6u);  // Parts of a MiB each, and one for the rest.
  {
    Controller two = *start("two");
    EXPECT_EQ(value(*two.store, "large"), large);
    EXPECT_EQ(scan_all(*two.store, "k")->size(), 2000u);
    ASSERT_TRUE(two.store->snapshot().ok());
  }
  EXPECT_EQ(keys("part/").size(), 0u);
  EXPECT_EQ(keys("log/").size(), 0u);
  const Controller three = *start("three");
  EXPECT_EQ(value(*three.store, "large"), large);
  EXPECT_EQ(value(*three.store, "k1999"), "1999");
  EXPECT_EQ(three.store->revision(), 2);
}

// Snapshots are written during other writes: the next controller gets the same records from any of them.
TEST_F(EtcdStoreTest, SnapshotAndLogMakeTheSameRecords) {
  std::mt19937 random(11);
  MemoryStore model;
  EtcdStoreOptions options;
  options.snapshot_entries = 25;
  options.value_bytes = 2000;  // Several parts each.
  options.compact_etcd = false;
  for (int round = 0; round < 4; ++round) {
    Controller one = *start(absl::StrCat("round ", round), options);
    std::thread snapshots([&] {
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(one.store->snapshot().ok());
    });
    std::promise<void> all;
    constexpr int kCount = 200;
    for (int i = 0; i < kCount; ++i) {
      std::vector<Mutation> mutations;
      for (uint32_t j = 0; j < 1 + random() % 3; ++j) {
        const std::string key = absl::StrCat("key/", random() % 60);
        mutations.push_back(random() % 4 == 0 ? erase(key) : put(key, std::string(random() % 400, 'v')));
      }
      model.commit({mutations}, [](const auto&) {});
      one.store->commit({mutations}, [&, i](const absl::StatusOr<int64_t>& revision) {
        EXPECT_TRUE(revision.ok());
        if (i == kCount - 1) all.set_value();
      });
      if (i % 20 == 0) std::this_thread::yield();
    }
    all.get_future().wait();
    snapshots.join();
    model.run_pending();
    one.store.reset();
    const Controller two = *start("two", options);
    EXPECT_EQ(two.store->revision(), model.revision());
    const std::vector<Record> records = *scan_all(*two.store, ""), expected = *scan_all(model, "");
    ASSERT_EQ(records.size(), expected.size());
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].key, expected[i].key);
      EXPECT_EQ(records[i].value, expected[i].value);
      EXPECT_EQ(records[i].revision, expected[i].revision);
    }
  }
}

// A missing or damaged key is named, and nothing else is served instead.
TEST_F(EtcdStoreTest, MissingOrDamagedKeysAreNamed) {
  EtcdStoreOptions options;
  options.value_bytes = 1000;
  {
    Controller one = *start("one", options);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(commit(*one.store, {put(absl::StrCat("a", i), "v")}).ok());
    ASSERT_TRUE(commit(*one.store, {put("large", std::string(3000, 'x'))}).ok());
  }
  const auto opens = [&] { return start("again", options).status(); };
  ASSERT_TRUE(opens().ok());
  const auto damaged_without = [&](const std::string& key, const std::string& named) {
    const etcdserverpb::KeyValue kept = client()->range(read_of(prefix_ + key))->kvs(0);
    change_etcd([&](Operations& operations) { add_erase(operations, kept.key(), kept.key() + '\0'); });
    const absl::Status missing = opens();
    EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss) << missing;
    EXPECT_THAT(std::string(missing.message()), HasSubstr(named + " is missing"));
    std::string flipped = kept.value();
    flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 4);
    change_etcd([&](Operations& operations) { add_put(operations, kept.key(), flipped); });
    const absl::Status damaged = opens();
    EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
    EXPECT_THAT(std::string(damaged.message()), HasSubstr(key + " does not match its checksum"));
    change_etcd([&](Operations& operations) { add_put(operations, kept.key(), kept.value()); });
    ASSERT_TRUE(opens().ok());
  };
  damaged_without("log/00000000000000000003", "log/00000000000000000003");
  damaged_without("log/00000000000000000006", "log/00000000000000000006");  // The last one.
  damaged_without("part/00000000000000000006/1/000002", "part/00000000000000000006/1/000002");
  damaged_without("head", "head");
  {
    Controller one = *start("one", options);
    ASSERT_TRUE(one.store->snapshot().ok());
  }
  const std::string part = keys("snap/").at(1).substr(prefix_.size());
  damaged_without(part, part);
  damaged_without("snapshot", "log/00000000000000000001");
}

// A full etcd rejects what can be rejected and lets the rest wait; no result is wrong.
TEST_F(EtcdStoreTest, AFullEtcdRefuses) {
  EtcdProcess full({"--quota-backend-bytes", "3000000"});
  ElectorOptions options;
  options.prefix = prefix_;
  auto running = std::make_unique<Elector>(std::make_shared<EtcdClient>(EtcdEndpoints{{full.address()}}), options);
  ASSERT_TRUE(running->campaign(absl::Now() + absl::Seconds(20)).ok());
  std::promise<absl::StatusOr<int64_t>> kept;  // Answered when the store closes.
  const auto store = *EtcdStore::open(std::move(running));
  absl::Status refused;
  int64_t acknowledged = 0;
  for (int i = 0; i < 100 && refused.ok(); ++i) {
    refused = commit(*store, {put("k", std::string(200'000, 'x'))}, WhenFull::kRefuse).status();
    if (refused.ok()) ++acknowledged;
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_GT(acknowledged, 3);
  EXPECT_EQ(store->revision(), acknowledged);
  store->commit({{put("kept", "x")}}, [&](const absl::StatusOr<int64_t>& result) { kept.set_value(result); });
  EXPECT_EQ(commit(*store, {put("k", "x")}, WhenFull::kRefuse).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(kept.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

}  // namespace
}  // namespace titan::store
