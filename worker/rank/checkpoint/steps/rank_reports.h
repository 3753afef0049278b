#pragma once

// The ranks' reports reach rank 0, and its verdicts come back, through the job's key-value store (Exchange). Reports
// are joined on the way in a tree of ranks (Branch), so that no rank reads more than a few however many there are.

#include <atomic>
#include <map>
#include <new>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/checkpoint/steps/pulse.h"

namespace titan::checkpoint {

inline constexpr int kFanOut = 32;  // Of the tree.

// Ranks [begin, end), of which the first speaks for all.
struct Branch {
  int begin = 0;
  int end = 1;
  bool operator==(const Branch&) const = default;
};

// The branches of neighbouring ranks that follow the first one, `fan_out` at most and about equally large.
std::vector<Branch> branches(const Branch& of, int fan_out);

// The branch for which `rank` speaks, in a tree with rank 0 at its root.
Branch branch_of(int rank, int world, int fan_out);

// How many reports follow each other on the longest way to the branch's first rank.
int height(const Branch& branch, int fan_out);

// A status as it travels between ranks, in each rank's report and in rank 0's verdict on all of them. The code
// survives, so that "fenced" and "disk full" mean the same on every rank.
nlohmann::json to_json(const absl::Status& status);
absl::Status status_from_json(const nlohmann::json& from);

// The codes of Exchange: there is nobody left to agree with.
bool lost_a_rank(const absl::Status& status);

// A file's own "unavailable" must not read as a lost rank.
absl::Status not_a_lost_rank(const absl::Status& status);

// LibTorch throws (out of memory, a tensor that does not fit a view); a rank that fails must still report, or all
// others wait.
template <typename Call>
auto caught(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return absl::InternalError(what.substr(0, what.find('\n')));
  }
}

// Reports to rank 0 and verdicts from it, through the job's key-value store and never through a training group, so that
// it works on a background thread while training goes on. Polls, so that no call blocks other users of the store: for
// all keys in one call, and less often the longer it takes.
class Exchange {
 public:
  // A rank whose pulse stops for `silence`, or does not begin within `start`, is gone; one that lives has `timeout` for
  // its word.
  struct Timeout {
    absl::Duration timeout = absl::Minutes(30);
    absl::Duration silence = absl::Seconds(15);
    absl::Duration start = absl::Minutes(5);
  };

  Exchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world, const Timeout& patience,
           const std::atomic<bool>* stop, int fan_out = kFanOut)
      : store_(std::move(store)), rank_(rank), world_(world), timeout_(patience), stop_(stop), fan_out_(fan_out) {}

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
  Timeout timeout_;
  const std::atomic<bool>* stop_;
  int fan_out_;
  std::set<std::string> given_;      // By share().
  std::vector<std::string> spoken_;  // Rank 0's broadcasts since the last gather.
};

// Brings the ranks' reports about their shards to rank 0.
class ShardReports {
 public:
  explicit ShardReports(Exchange& exchange) : exchange_(exchange) {}

  // Collective: this rank's word about the shard that it wrote, or why it could not. Rank 0 gets all of them in one.
  absl::StatusOr<std::string> gather(const std::string& topic, const absl::StatusOr<WrittenShard>& shard,
                                     nlohmann::json per_rank);

  // Rank 0: puts what they say into the manifest; the first error among them.
  absl::Status complete(const std::string& words, Manifest& manifest);

 private:
  absl::StatusOr<WrittenStep> report_here(const absl::StatusOr<WrittenShard>& shard, nlohmann::json per_rank,
                                          absl::Status& shared);

  Exchange& exchange_;
  std::map<std::string, TensorTable> tables_;  // Rank 0's, of all reports so far.
};

}  // namespace titan::checkpoint
