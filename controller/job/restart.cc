#include "controller/job/restart.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/failed_ranks.h"

namespace titan::job {
namespace {

using rank_protocol::ExitCode;
using rank_protocol::ExitKind;

constexpr int kSigKill = 9;
constexpr int kNotLoaded = 127;  // The system's loader: a library of the program is missing or does not fit.
constexpr int kStaleLimit = 20;

constexpr char kFolderTaken[] = "DUMP_FOLDER_TAKEN";  // Another job took it while this one held it.
constexpr char kSpecLost[] = "SPEC_UNREADABLE";
constexpr char kFolderInUse[] = "DUMP_FOLDER_IN_USE";
constexpr char kFolderNotShared[] = "DUMP_FOLDER_NOT_SHARED";
constexpr char kFolderReplaced[] = "DUMP_FOLDER_REPLACED";
constexpr char kGone[] = "CHECKPOINTS_GONE";

// User errors that another attempt would meet again on any node or mesh: the model does not fit the weights, the
// adapters or its own library. Other user errors may pass: a mount or a hub may be back a moment later, another number
// of ranks may fit the batch and the position in the data, and other hardware may not compute a NONFINITE_LOSS.
constexpr const char* kNeverTwice[] = {"LORA_BASE", "MODEL", "MODEL_MISMATCH"};

ExitKind kind_of(const RankExit& exit) {
  return rank_protocol::exit_kind(exit.exit_code, exit.signal, exit.out_of_memory);
}

Cause cause_of(const RankExit& exit) {
  switch (kind_of(exit)) {
    case ExitKind::kBadConfig:
      return Cause::kBadConfig;
    case ExitKind::kUserError:
      return Cause::kUserError;
    case ExitKind::kOutOfMemory:
      return Cause::kOutOfMemory;
    case ExitKind::kStorage:
      return Cause::kStorageError;
    case ExitKind::kFenced:
      return Cause::kFenced;
    case ExitKind::kKilled:
      return Cause::kRankKilled;
    default:
      return exit.exit_code == kNotLoaded ? Cause::kLaunchFailed : Cause::kRankFailed;
  }
}

std::string how_it_left(const RankExit& exit) {
  if (exit.out_of_memory && exit.memory_limit_bytes > 0) {
    return absl::StrFormat("was killed for exceeding memory (its node limits the attempt's ranks to %.2f GiB in total)",
                           static_cast<double>(exit.memory_limit_bytes) / (1 << 30));
  }
  if (exit.out_of_memory) return "was killed for memory";
  if (exit.signal != 0) return absl::StrCat("was killed by signal ", exit.signal);
  if (exit.exit_code == kNotLoaded) return "could not be started";
  return absl::StrCat("exited with code ", exit.exit_code);
}

// True if it was alive until its node was ordered to end it.
bool was_ended_by_titan(const RankExit& exit) {
  return exit.signal == kSigKill && !exit.stop_reason.empty() && !exit.out_of_memory;
}

// True if the controller killed it with the rest of the attempt.
bool is_collateral(const RankExit& exit, int64_t stop_time_ns) {
  return stop_time_ns != 0 && exit.signal == kSigKill && !exit.out_of_memory && exit.time_ns >= stop_time_ns;
}

const RankExit* find_root(const EndFacts& facts) {
  const RankExit* root = nullptr;
  for (const bool take_collateral : {false, true}) {
    for (const RankExit& exit : facts.exits) {
      if (is_collateral(exit, facts.stop_time_ns) != take_collateral || kind_of(exit) == ExitKind::kExpected) continue;
      if (was_ended_by_titan(exit)) continue;  // It was alive, so no peer had lost it.
      const auto order = [](const RankExit& e) { return std::make_tuple(kind_of(e), e.report, e.time_ns); };
      if (root == nullptr || order(exit) < order(*root)) root = &exit;
    }
    // A peer was lost, and only the controller's own kills are left to explain it: the earliest of them is the lost
    // peer.
    if (root != nullptr && kind_of(*root) != ExitKind::kPeerLost) return root;
  }
  return root;
}

AttemptEnd from_exit(const RankExit& exit, const EndFacts& facts) {
  AttemptEnd end{cause_of(exit), "", absl::StrCat("rank ", exit.rank, " on ", exit.node, " ", how_it_left(exit))};
  end.never_ran = end.cause == Cause::kLaunchFailed;
  end.node = exit.node;
  // The last log line does not explain a SIGKILL.
  std::string words = exit.signal == kSigKill ? "" : exit.message;
  for (const ErrorReport& error : facts.errors) {
    if (error.rank != exit.rank) continue;
    end.reason = error.reason == "FENCED" && !error.same_job ? kFolderTaken : error.reason;
    words = error.message;
  }
  if (!words.empty()) absl::StrAppend(&end.message, ": ", words);
  return end;
}

Cause cause_of(const Refusal& refusal) {
  if (refusal.reason == "SHIM_LOST") return Cause::kShimLost;
  if (refusal.reason == "HANG") return Cause::kHang;
  for (const char* reason : {kFolderNotShared, "DUMP_FOLDER_UNUSABLE", kFolderInUse, kFolderReplaced, kGone,
                             "NO_SUCH_USER", "ROOT_NOT_ALLOWED", "FOLDER_NOT_ALLOWED"}) {
    if (refusal.reason == reason) return Cause::kUserError;
  }
  return Cause::kLaunchFailed;
}

AttemptEnd from_refusal(const EndFacts& facts) {
  const Refusal& refusal = facts.refusals.front();
  const std::string who = refusal.node.empty() ? "" : absl::StrCat("node ", refusal.node, ": ");
  AttemptEnd end{cause_of(refusal), refusal.reason, absl::StrCat(who, refusal.message)};
  end.node = refusal.node;
  if (refusal.reason != kFolderNotShared) return end;
  end.elsewhere = facts.elsewhere;
  end.at_odds = {facts.leader};
  for (const Refusal& other : facts.refusals) {
    if (other.reason == kFolderNotShared && other.node != facts.leader) end.at_odds.push_back(other.node);
  }
  return end;
}

// The verdict, from the ranks' own recordings, names the rank that the others waited for or that came with another
// call.
AttemptEnd with_verdict(AttemptEnd end, const EndFacts& facts) {
  if (!facts.verdict.empty()) end.message = absl::StrCat(facts.verdict, ". ", end.message);
  return end;
}

AttemptEnd from_hang(const EndFacts& facts, const RankExit* peer) {
  if (facts.hung.empty()) {
    AttemptEnd end = from_exit(*peer, facts);
    end.cause = Cause::kHang;
    end.reason = "HANG";
    return end;
  }
  const auto who = [](std::string* out, const HungRank& hung) {
    absl::StrAppend(out, "rank ", hung.rank, " on ", hung.node, " in ", hung.phase.empty() ? "its start" : hung.phase);
  };
  AttemptEnd end{Cause::kHang, "HANG",
                 absl::StrCat(absl::StrJoin(facts.hung, ", ", who), " made no progress for ",
                              static_cast<int>(facts.hung.front().seconds), " s; Titan ended it")};
  if (peer != nullptr) absl::StrAppend(&end.message, ". ", from_exit(*peer, facts).message);
  return end;
}

std::string by(const std::string& actor) { return actor.empty() ? "" : absl::StrCat(" by ", actor); }

// Returns who made the ranks save and leave. Only ranks that their own node stopped know it: the others followed them.
std::string who_stopped(const EndFacts& facts) {
  for (const RankExit& exit : facts.exits) {
    if (exit.stop_reason.empty()) continue;
    const auto drained = facts.drained.find(exit.node);
    if (exit.stop_reason == "NODE_DRAINED") {
      return absl::StrCat("node ", exit.node, " was drained",
                          drained == facts.drained.end() ? "" : by(drained->second));
    }
    if (exit.stop_reason == "ORPHANED") {
      return absl::StrCat("node ", exit.node, " had no contact with a controller for ", facts.orphan_timeout_seconds,
                          " s (restart.orphan_timeout_seconds)");
    }
    if (exit.stop_reason == "WORKER_STOPPING") {
      return absl::StrCat("titan-worker on ", exit.node, " was stopped (--stop-ranks-on-exit)");
    }
    return absl::StrCat("node ", exit.node, " stopped its ranks (", exit.stop_reason, ")");
  }
  // A drained node was ordered to stop its ranks, but they left sooner.
  if (!facts.drained.empty()) {
    const auto& [node, actor] = *facts.drained.begin();
    return absl::StrCat("node ", node, " was drained", by(actor));
  }
  return "a rank was asked to stop from outside Titan (SIGTERM)";
}

std::optional<AttemptEnd> clean_end(const EndFacts& facts) {
  const auto left_with = [&](int code) {
    return std::count_if(facts.exits.begin(), facts.exits.end(),
                         [&](const RankExit& exit) { return exit.signal == 0 && exit.exit_code == code; });
  };
  const int finished = static_cast<int>(left_with(ExitCode::kExitFinished));
  const int stopped = static_cast<int>(left_with(ExitCode::kExitStopped));
  if (finished == facts.num_ranks) return AttemptEnd{Cause::kFinished, "", "every rank finished"};
  if (facts.cancelled) {
    return AttemptEnd{
        Cause::kCancelled, "",
        absl::StrCat("cancelled", by(facts.actor), stopped == facts.num_ranks ? "; the ranks saved first" : "")};
  }
  if (facts.out_of_time) {
    return AttemptEnd{
        Cause::kTimeLimit, "",
        absl::StrCat("the job's time limit was over", stopped == facts.num_ranks ? "; the ranks saved first" : "")};
  }
  if (finished + stopped == facts.num_ranks) {
    return AttemptEnd{Cause::kStopped, "", absl::StrCat(who_stopped(facts), ": the ranks saved and exited")};
  }
  return std::nullopt;
}

}  // namespace

absl::string_view name(Cause cause) {
  switch (cause) {
    case Cause::kFinished:
      return "FINISHED";
    case Cause::kCancelled:
      return "CANCELLED";
    case Cause::kTimeLimit:
      return "TIME_LIMIT";
    case Cause::kStopped:
      return "STOPPED";
    case Cause::kRankKilled:
      return "RANK_KILLED";
    case Cause::kRankFailed:
      return "RANK_FAILED";
    case Cause::kOutOfMemory:
      return "OUT_OF_MEMORY";
    case Cause::kStorageError:
      return "STORAGE_ERROR";
    case Cause::kFenced:
      return "FENCED";
    case Cause::kShimLost:
      return "SHIM_LOST";
    case Cause::kNodeLost:
      return "NODE_LOST";
    case Cause::kHang:
      return "HANG";
    case Cause::kLaunchFailed:
      return "LAUNCH_FAILED";
    case Cause::kUserError:
      return "USER_ERROR";
    case Cause::kBadConfig:
      return "BAD_CONFIG";
    case Cause::kStaleAttempt:
      return "STALE_ATTEMPT";
  }
  return "UNKNOWN";
}

bool is_cause(absl::string_view text) {
  for (int i = 0; i <= static_cast<int>(Cause::kStaleAttempt); ++i) {
    if (name(static_cast<Cause>(i)) == text) return true;
  }
  return false;
}

AttemptEnd classify(const EndFacts& facts) {
  if (std::optional<AttemptEnd> clean = clean_end(facts)) return *clean;
  if (facts.newer_attempt > 0) {
    return {Cause::kStaleAttempt, "STALE_ATTEMPT",
            absl::StrCat("attempt ", facts.newer_attempt, " of the same job is newer than this controller's records")};
  }
  const RankExit* root = find_root(facts);
  // A rank that reports a user error outranks everything. A lost node or shim outranks the deaths that followed from
  // it.
  if (root != nullptr && kind_of(*root) <= ExitKind::kUserError) return from_exit(*root, facts);
  if (!facts.lost_nodes.empty()) {
    return {Cause::kNodeLost, "", absl::StrCat("lost node ", absl::StrJoin(facts.lost_nodes, ", "))};
  }
  if (!facts.refusals.empty()) return with_verdict(from_refusal(facts), facts);
  const bool lost_a_peer = root == nullptr || kind_of(*root) == ExitKind::kPeerLost;
  const bool is_explained = !facts.hung.empty() || (!facts.verdict.empty() && root != nullptr);
  if (lost_a_peer && is_explained) return with_verdict(from_hang(facts, root), facts);
  if (root != nullptr) return with_verdict(from_exit(*root, facts), facts);
  return {Cause::kRankFailed, "",
          absl::StrCat(facts.exits.size(), " of ", counted(facts.num_ranks, "rank"),
                       facts.exits.size() == 1 ? " is" : " are", " known to have exited")};
}

std::vector<RankExit> most_relevant(const std::map<int, RankExit>& exits) {
  std::vector<RankExit> kept;
  for (const auto& [rank, exit] : exits) kept.push_back(exit);
  if (kept.size() <= kExitsKept) return kept;
  const auto order = [](const RankExit& e) {
    return std::make_tuple(e.kept_log_bytes == 0, was_ended_by_titan(e), kind_of(e), e.report, e.time_ns);
  };
  std::nth_element(kept.begin(), kept.begin() + kExitsKept, kept.end(),
                   [&](const RankExit& a, const RankExit& b) { return order(a) < order(b); });
  kept.resize(kExitsKept);
  std::sort(kept.begin(), kept.end(), [](const RankExit& a, const RankExit& b) { return a.rank < b.rank; });
  return kept;
}

bool lacks_devices(const AttemptEnd& end) { return end.reason == "NO_DEVICES" || end.reason == "DEVICE_TAKEN"; }

bool is_refusal_of_node(const AttemptEnd& end) {
  constexpr absl::string_view kBeforeRanks[] = {"STATE_FOLDER_UNUSABLE", "PREPARE_TIMEOUT", "LAUNCH_FAILED",
                                                "NODE_STOPPING",         "NOT_PREPARED",    "ADDRESS_IS_LOOPBACK",
                                                "FENCE_UNREADABLE",      "RECORD_LOST"};
  if (end.cause != Cause::kLaunchFailed) return false;
  // The system's loader failed: the installation on that node is being changed.
  return end.never_ran ||
         std::find(std::begin(kBeforeRanks), std::end(kBeforeRanks), end.reason) != std::end(kBeforeRanks);
}

bool is_lost_folder(const AttemptEnd& end) { return end.reason == kFolderReplaced || end.reason == kGone; }

bool note_progress(RestartHistory& history, int64_t step, int64_t commit) {
  const bool progress = step > history.best_step || commit > history.best_commit;
  history.best_step = std::max(history.best_step, step);
  history.best_commit = std::max(history.best_commit, commit);
  if (progress) history.without_progress = history.taken_devices = 0;
  return progress;
}

namespace {

// The first restart is immediate. Later ones wait 1, 2, 4 ... times the initial backoff.
double delay_of(const RestartPolicy& policy, int restart, double jitter) {
  if (restart == 0) return 0;
  const double backoff = policy.backoff_initial_seconds * std::pow(2.0, std::min(restart - 1, 30));
  return std::min(backoff * (1 + jitter / 4), policy.backoff_max_seconds);
}

// True if the next attempt may do without the node that has another mount.
bool may_agree_elsewhere(const RestartHistory& history, const AttemptEnd& end) {
  return end.elsewhere && std::any_of(end.at_odds.begin(), end.at_odds.end(), [&](const std::string& node) {
           return std::find(history.at_odds.begin(), history.at_odds.end(), node) != history.at_odds.end();
         });
}

}  // namespace

Verdict decide(const RestartPolicy& policy, RestartHistory& history, const AttemptEnd& end, int64_t step,
               double jitter) {
  const auto fail = [&](absl::string_view reason, std::string message) {
    return Verdict{false, 0, std::string(reason), std::move(message)};
  };
  const std::string reason = end.reason.empty() ? std::string(name(end.cause)) : end.reason;
  if (end.cause == Cause::kBadConfig) return fail(reason, end.message);
  // If a job that has trained meets such a node, the installation there is being changed: another attempt is
  // worthwhile.
  if (end.never_ran && history.best_step <= 0 && history.best_commit <= 0) return fail(reason, end.message);
  // Its record is set aside, and the next attempt would find the same.
  if (reason == kSpecLost) return fail(reason, end.message);
  // Another job has the folder. If this one came back, both would train one model alternately.
  if (reason == kFolderTaken || reason == kFolderInUse) return fail(reason, end.message);
  // The job is not at fault, and its next number is above the one that was found.
  if (end.cause == Cause::kStaleAttempt) {
    if (++history.stale_attempts < kStaleLimit) return {true, 0, "", ""};
    return fail(reason, absl::StrCat(end.message, ", for the ", kStaleLimit,
                                     "th time: does another controller run a copy of this one's store?"));
  }
  // The job waits for devices, like a job in the queue: no number of refusals makes it fail.
  if (lacks_devices(end)) return {true, delay_of(policy, history.taken_devices++, jitter), "", ""};
  // The same holds for a node that refuses. The first time, another node is tried at once. Later the same one is tried
  // again, and a disk or an installation takes longer to repair than devices take to become free.
  if (is_refusal_of_node(end)) {
    const int refusals = history.taken_devices++;
    // This holds even if the job wants no backoff: nothing else would slow down the retries of a job and a node that
    // refuses it.
    const double least = std::min(refusals, 30);
    return {true, refusals == 0 ? 0 : std::max(least, delay_of(policy, refusals + 2, jitter)), "", ""};
  }
  // Another attempt would only report it again.
  if (std::find(std::begin(kNeverTwice), std::end(kNeverTwice), reason) != std::end(kNeverTwice))
    return fail(reason, end.message);
  if (end.cause == Cause::kUserError) {
    const bool again = history.user_error == reason && history.user_error_step == step;
    if (again && !may_agree_elsewhere(history, end)) {
      return fail(reason, absl::StrCat(end.message, " (the same error at step ", step, " twice)"));
    }
    history.user_error = reason;
    history.user_error_step = step;
    history.at_odds = end.at_odds;
  }
  if (history.without_progress >= policy.no_progress_limit) {
    return fail("NO_PROGRESS", absl::StrCat(counted(history.without_progress, "restart"),
                                            " reached no new step or checkpoint beyond step ", history.best_step,
                                            "; the last attempt ended with ", reason, ": ", end.message));
  }
  return {true, delay_of(policy, history.without_progress++, jitter), "", ""};
}

}  // namespace titan::job
