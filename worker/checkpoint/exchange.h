#pragma once

#include <atomic>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::checkpoint {

// Reports to rank 0 and verdicts from it, through the job's key-value store and never through a training group, so that
// it works on a background thread while training goes on. Polls, so that no call blocks other users of the store.
class Exchange {
 public:
  Exchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world, absl::Duration timeout,
           const std::atomic<bool>* stop)
      : store_(std::move(store)), rank_(rank), world_(world), timeout_(timeout), stop_(stop) {}

  bool leader() const { return rank_ == 0; }

  // Every rank calls it. Rank 0 gets all reports in rank order, the others an empty list.
  // Errors: Unavailable when the store is gone; DeadlineExceeded naming the ranks that did not report; Cancelled once
  // stopped.
  absl::StatusOr<std::vector<std::string>> gather(const std::string& topic, const std::string& report);

  // Rank 0 says, the others listen; everybody gets the words.
  absl::StatusOr<std::string> broadcast(const std::string& topic, const std::string& words);

 private:
  absl::Status await(const std::vector<std::string>& keys);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int world_;
  absl::Duration timeout_;
  const std::atomic<bool>* stop_;
  std::vector<std::string> spoken_;  // Rank 0's broadcasts since the last gather.
};

}  // namespace titan::checkpoint
