#pragma once

// Carries the ranks' reports to rank 0, and its verdicts back, through the job's key-value store (ReportExchange). A
// tree of ranks (Branch) joins reports on the way, so that no rank reads more than a few, however many ranks there are.

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
#include "worker/rank/checkpoint/steps/heartbeat.h"

namespace titan::checkpoint {

inline constexpr int kFanOut = 32;  // Children of a rank in the tree.

// Ranks [begin, end). The first one reports for all.
struct Branch {
  int begin = 0;
  int end = 1;
  bool operator==(const Branch&) const = default;
};

// Returns the branches of consecutive ranks after the first rank: at most `fan_out`, about equally large.
std::vector<Branch> branches(const Branch& of, int fan_out);

// Returns the branch for which `rank` reports, in a tree with rank 0 at its root.
Branch branch_of(int rank, int world, int fan_out);

// Returns the number of reports on the longest path to the branch's first rank.
int height(const Branch& branch, int fan_out);

// Convert a status for its way between ranks, in a rank's report and in rank 0's verdict on all. The code survives, so
// that "fenced" and "disk full" mean the same on every rank.
nlohmann::json to_json(const absl::Status& status);
absl::Status status_from_json(const nlohmann::json& from);

// Returns whether ReportExchange lost a rank, or was stopped: agreement is no longer possible.
bool is_rank_lost(const absl::Status& status);

// Changes the code of a local error that would be mistaken for a lost rank, such as a file's Unavailable, to Aborted.
absl::Status as_local_error(const absl::Status& status);

// Turns LibTorch's exceptions (out of memory, a tensor that does not fit a view) into a status. A rank that fails must
// still report, or all others wait.
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

// Carries reports to rank 0 and verdicts from it through the job's key-value store, never through a training group, so
// that it works on a background thread during training. It polls, so that no call blocks other users of the store: all
// keys in one call, and less often the longer it takes.
class ReportExchange {
 public:
  // A rank is lost if its pulse stops for `silence`, or does not begin within `start`. A live rank has `timeout` to
  // report.
  struct Timeout {
    absl::Duration timeout = absl::Minutes(30);
    absl::Duration silence = absl::Seconds(15);
    absl::Duration start = absl::Minutes(5);
  };

  ReportExchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world, const Timeout& timeouts,
                 const std::atomic<bool>* stop, int fan_out = kFanOut)
      : store_(std::move(store)), rank_(rank), world_(world), timeout_(timeouts), stop_(stop), fan_out_(fan_out) {}

  bool leader() const { return rank_ == 0; }
  // Adds this rank's name to an error, for other ranks.
  absl::Status named(const absl::Status& status) const;

  // Joins reports of consecutive ranks, in order. They may be joined reports themselves.
  using Join = absl::FunctionRef<std::string(const std::vector<std::string>& reports)>;

  // Collective. Rank 0 gets all reports as one, the others an empty text: they learn of errors from rank 0's next
  // broadcast. Errors: Unavailable if the store is gone, or names the ranks with dead processes; DeadlineExceeded,
  // names the ranks that did not report; Cancelled once stopped.
  absl::StatusOr<std::string> gather(const std::string& topic, const std::string& report, Join join);

  // Shares a text that many ranks have: the first of them puts it into the store, where it stays. Call it before a
  // report that names it.
  absl::Status share(const std::string& name, const std::string& text);
  // Rank 0: returns the text that a report named.
  absl::StatusOr<std::string> shared(const std::string& name);

  // Collective. Rank 0 sends, the others receive. All return the words. Errors: those of gather().
  absl::StatusOr<std::string> broadcast(const std::string& topic, const std::string& words);

 private:
  // Waits until each of `ranks` has set its key. `levels`: reports on the path that may each be late.
  absl::Status await(const std::vector<std::string>& keys, const std::vector<int>& ranks, int levels);
  // Sleeps. Cancelled once stopped.
  absl::Status rest(absl::Duration duration) const;
  // Returns OK while all ranks that have not set their key yet show a pulse.
  absl::Status check_heartbeats(HeartbeatMonitor& watch, const std::vector<std::string>& keys,
                                const std::vector<int>& ranks);
  // Returns the joined report of this rank's branch.
  absl::StatusOr<std::string> collect(const std::string& topic, const std::string& report, Join join);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int world_;
  Timeout timeout_;
  const std::atomic<bool>* stop_;
  int fan_out_;
  std::set<std::string> given_;      // Names passed to share().
  std::vector<std::string> spoken_;  // Keys of rank 0's broadcasts since the last gather.
};

// Carries the ranks' reports about their shards to rank 0.
class ShardReports {
 public:
  explicit ShardReports(ReportExchange& exchange) : exchange_(exchange) {}

  // Collective: reports the shard that this rank wrote, or its error. Rank 0 gets all reports as one.
  absl::StatusOr<std::string> gather(const std::string& topic, const absl::StatusOr<WrittenShard>& shard,
                                     nlohmann::json per_rank);

  // Rank 0: puts the reports into the manifest, or returns the first error among them.
  absl::Status complete(const std::string& words, Manifest& manifest);

 private:
  absl::StatusOr<WrittenStep> report_here(const absl::StatusOr<WrittenShard>& shard, nlohmann::json per_rank,
                                          absl::Status& shared);

  ReportExchange& exchange_;
  std::map<std::string, TensorTable> tables_;  // Rank 0: the tables of all reports so far.
};

}  // namespace titan::checkpoint
