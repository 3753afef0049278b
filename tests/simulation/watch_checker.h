#pragma once

// Compares what watchers get with what the store has committed: a view has only durable changes when it is shown, and
// every durable change of a job is shown.

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "controller/reconcile/published.h"
#include "controller/store/store.h"

namespace titan::simulation {

class WatchChecker {
 public:
  WatchChecker(const store::Store& store, std::function<void(const std::string& what)> violated)
      : store_(store), violated_(std::move(violated)) {}

  // Follows a controller that has started; null while none runs.
  void follow(const reconcile::Published* published);
  // Called before each transaction: checks views that were shown without one.
  void look();
  // Called after each transaction with the jobs that it wrote or erased.
  void committed(const std::vector<std::string>& jobs, int64_t revision);

 private:
  std::set<std::string> shown_now();
  void compare(const reconcile::JobView& view);
  template <typename Record>
  void compare_record(const std::string& key, const Record& shown);
  void compare_exits(const std::string& uid, const job::AttemptRecord& attempt);

  const store::Store& store_;
  const std::function<void(const std::string& what)> violated_;
  const reconcile::Published* published_ = nullptr;
  int64_t cursor_ = 0;
  int64_t views_ = 0;
};

}  // namespace titan::simulation
