// Counts a CPU rank's requests to the store until a group of its mesh is ready. Groups over sockets are LibTorch's own:
// each rank reads the address of every other one, so its requests grow with the group, and the bytes of all of them
// with its square. docs/scale.md states this; the test notices if a new version makes more requests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/worker/rank/comm/thread_ranks.h"

namespace titan::comm {
namespace {

struct Requests {
  int64_t calls = 0, read = 0, written = 0;
};
thread_local Requests own;  // Requests of the rank that this thread runs.

// Counts requests as TCPStore makes them: a list of keys is one request.
class CountingStore final : public c10d::Store {
 public:
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    note(0, key.size() + value.size());
    store_->set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& value) override {
    note(0, key.size() + value.size());
    return store_->compareSet(key, expected, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    std::vector<uint8_t> value = store_->get(key);
    note(value.size(), key.size());
    return value;
  }
  int64_t add(const std::string& key, int64_t value) override {
    note(8, key.size());
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    note(1, key.size());
    return store_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    note(1, 0);
    return store_->check(keys);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    note(1, 0);
    store_->wait(keys, timeout);
  }
  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    note(0, key.size() + value.size());
    store_->append(key, value);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::vector<std::vector<uint8_t>> values = store_->multiGet(keys);
    size_t bytes = 0;
    for (const auto& value : values) bytes += value.size();
    note(bytes, 0);
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    note(0, 0);
    store_->multiSet(keys, values);
  }
  bool hasExtendedApi() const override { return true; }

 private:
  static void note(size_t read, size_t written) {
    ++own.calls;
    own.read += static_cast<int64_t>(read);
    own.written += static_cast<int64_t>(written);
  }
  const c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
};

// Returns the largest counts of any rank.
Requests max_requests(int size, bool shared_memory) {
  testing::ThreadWorld world{.size = size, .axes = {mesh::Axis::kFsdp}};
  world.degrees.dp_shard = size;
  world.shared_memory = shared_memory;
  world.make_device = [](int, const std::shared_ptr<LocalHub>&) { return make_cpu_device(); };
  world.store = c10::make_intrusive<CountingStore>();
  std::mutex mutex;
  Requests maximum;
  testing::rethrow_cause(testing::run_world(world, [&](testing::ThreadRank&) {
    const std::lock_guard lock(mutex);
    maximum.calls = std::max(maximum.calls, own.calls);
    maximum.read = std::max(maximum.read, own.read);
    maximum.written = std::max(maximum.written, own.written);
  }));
  return maximum;
}

// Over sockets a rank publishes its address and makes two requests for each other rank; shared memory needs two rounds
// of three requests.
TEST(StoreRequestsTest, GroupSetupMakesFewRequests) {
  for (const bool shared : {false, true}) {
    for (const int size : {2, 4, 8, 12}) {
      const Requests maximum = max_requests(size, shared);
      std::printf("group of %2d, %s: %lld requests, %lld bytes read, %lld written\n", size,
                  shared ? "shared memory" : "sockets", static_cast<long long>(maximum.calls),
                  static_cast<long long>(maximum.read), static_cast<long long>(maximum.written));
      EXPECT_LE(maximum.calls, 2 * size + 7) << size;
      EXPECT_LE(maximum.read, 400 * size) << size;
    }
  }
}

}  // namespace
}  // namespace titan::comm
