#pragma once

#include <chrono>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::comm {

// A store for ranks that are threads of one process. fail() wakes threads that wait for a key of a failed rank; with
// c10d's HashStore they would wait for the timeout.
class LocalStore : public c10d::Store {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  // From now on, waiting for or checking a missing key throws c10::DistStoreError.
  void fail(const std::string& why);

 private:
  bool all_there(const std::vector<std::string>& keys) const TITAN_REQUIRES(mutex_);

  sync::Mutex mutex_;
  sync::Condition changed_;
  std::map<std::string, std::vector<uint8_t>> values_ TITAN_GUARDED_BY(mutex_);
  std::string broken_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::comm
