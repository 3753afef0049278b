#include "worker/rank/comm/local_store.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace titan::comm {

c10::intrusive_ptr<c10d::Store> LocalStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void LocalStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  sync::Lock lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::vector<uint8_t> LocalStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  sync::Lock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return expected;  // Like c10d's own stores.
  if (found != values_.end() && found->second != expected) return found->second;
  changed_.notify_all();
  return values_[key] = desired;
}

std::vector<uint8_t> LocalStore::get(const std::string& key) {
  wait({key});
  sync::Lock lock(mutex_);
  return values_[key];
}

int64_t LocalStore::add(const std::string& key, int64_t value) {
  sync::Lock lock(mutex_);
  std::vector<uint8_t>& held = values_[key];
  const int64_t sum = value + (held.empty() ? 0 : std::stoll(std::string(held.begin(), held.end())));
  const std::string text = std::to_string(sum);
  held.assign(text.begin(), text.end());
  changed_.notify_all();
  return sum;
}

bool LocalStore::deleteKey(const std::string& key) {
  sync::Lock lock(mutex_);
  return values_.erase(key) > 0;
}

bool LocalStore::all_there(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return values_.contains(key); });
}

bool LocalStore::check(const std::vector<std::string>& keys) {
  sync::Lock lock(mutex_);
  if (all_there(keys)) return true;
  if (!broken_.empty()) C10_THROW_ERROR(DistStoreError, broken_);
  return false;
}

int64_t LocalStore::getNumKeys() {
  sync::Lock lock(mutex_);
  return static_cast<int64_t>(values_.size());
}

void LocalStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sync::Lock lock(mutex_);
  while (!all_there(keys)) {
    if (!broken_.empty()) C10_THROW_ERROR(DistStoreError, broken_);
    const bool late = changed_.wait_until(mutex_, deadline) == std::cv_status::timeout;
    if (late && !all_there(keys)) {
      C10_THROW_ERROR(DistStoreError,
                      "no value for key " + keys.front() + " within " + std::to_string(timeout.count()) + " ms");
    }
  }
}

void LocalStore::fail(const std::string& why) {
  sync::Lock lock(mutex_);
  if (broken_.empty()) broken_ = why;
  changed_.notify_all();
}

}  // namespace titan::comm
