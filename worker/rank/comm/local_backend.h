#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "worker/rank/comm/local_group.h"
#include "worker/rank/comm/local_store.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

// State shared by the ranks of one world that are threads of one process. Created before the threads; shared by their
// devices.
class LocalHub {
 public:
  LocalHub() : store_(c10::make_intrusive<LocalStore>()) {}

  c10::intrusive_ptr<c10d::Store> store() { return store_; }

  // Call it when a rank has ended early: every rank that waits for others, now or later, gets an error.
  void fail(const std::string& why);

  // Returns the group of that name: the same object for all its ranks.
  std::shared_ptr<LocalGroup> group(const std::string& name, int size);
  std::string new_name() { return "local-" + std::to_string(next_name_.fetch_add(1)); }

 private:
  const c10::intrusive_ptr<LocalStore> store_;
  std::atomic<int> next_name_{0};
  sync::Mutex mutex_;
  std::map<std::string, std::shared_ptr<LocalGroup>> groups_ TITAN_GUARDED_BY(mutex_);
  std::string broken_ TITAN_GUARDED_BY(mutex_);
};

// Makes the CPU device of one rank that is a thread: its groups meet in the hub instead of over sockets. The ranks of a
// group find each other through the store that is passed to make_backend(). Joining waits for no other rank.
std::unique_ptr<device::Device> make_local_device(std::shared_ptr<LocalHub> hub);

}  // namespace titan::comm
