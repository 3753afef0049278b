#pragma once

#include <atomic>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/checkpoint/steps/pulse.h"
#include "worker/rank/checkpoint/steps/report_tree.h"

namespace titan::checkpoint {

// Reports to rank 0 and verdicts from it, through the job's key-value store and never through a training group, so that
// it works on a background thread while training goes on. Reports are joined on the way, by the ranks of a tree
// (report_tree.h). Polls, so that no call blocks other users of the store: for all keys in one call, and the more
// seldom the longer it takes.
class Exchange {
 public:
  // A rank whose pulse stops for `silence`, or does not begin within `start`, is gone; one that lives has `timeout` for
  // its word.
  struct Patience {
    absl::Duration timeout = absl::Minutes(30);
    absl::Duration silence = absl::Seconds(15);
    absl::Duration start = absl::Minutes(5);
  };

  Exchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world, const Patience& patience,
           const std::atomic<bool>* stop, int fan_out = kFanOut)
      : store_(std::move(store)), rank_(rank), world_(world), patience_(patience), stop_(stop), fan_out_(fan_out) {}

  bool leader() const { return rank_ == 0; }
  // An error as all ranks hear it: with this rank's name.
  absl::Status named(const absl::Status& status) const;

  // Joins reports of neighbouring ranks, in their order, which may be joined reports themselves.
  using Join = absl::FunctionRef<std::string(const std::vector<std::string>& reports)>;

  // Every rank calls it. Rank 0 gets all reports as one, the others nothing: they hear of errors by what it says next.
  // Errors: Unavailable when the store is gone, or naming the ranks whose processes died; DeadlineExceeded naming the
  // ranks that did not report; Cancelled once stopped.
  absl::StatusOr<std::string> gather(const std::string& topic, const std::string& report, Join join);

  // Something that many ranks have alike: the first of them puts it into the store, where it stays. Before a report
  // that names it.
  absl::Status share(const std::string& name, const std::string& text);
  // Rank 0, of what a report named.
  absl::StatusOr<std::string> shared(const std::string& name);

  // Rank 0 says, the others listen; everybody gets the words.
  absl::StatusOr<std::string> broadcast(const std::string& topic, const std::string& words);

 private:
  // Until each of `ranks` has set its key. `levels`: of reports that may be late one after the other.
  absl::Status await(const std::vector<std::string>& keys, const std::vector<int>& ranks, int levels);
  // Cancelled once stopped.
  absl::Status rest(absl::Duration duration) const;
  // Ok while all of those that have not set their key yet show a pulse.
  absl::Status check_pulses(PulseWatch& watch, const std::vector<std::string>& keys, const std::vector<int>& ranks);
  // The joined report of this rank's branch.
  absl::StatusOr<std::string> collect(const std::string& topic, const std::string& report, Join join);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int world_;
  Patience patience_;
  const std::atomic<bool>* stop_;
  int fan_out_;
  std::set<std::string> given_;      // By share().
  std::vector<std::string> spoken_;  // Rank 0's broadcasts since the last gather.
};

}  // namespace titan::checkpoint
