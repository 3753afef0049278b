#pragma once

// Classifies how ranks end, and chooses the failed ranks whose last log lines are worth keeping.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/rank_protocol/launch.h"

namespace titan::rank_protocol {

// Kind of a rank's end, the most informative first: ends that name a cause, then ends without one, then consequences of
// another rank's end.
enum class ExitKind {
  kBadConfig,
  kUserError,
  kOutOfMemory,
  kStorage,
  kFenced,
  kFailed,    // Any other exit code.
  kKilled,    // Killed by a signal.
  kPeerLost,  // A consequence of another rank's end.
  kExpected,  // Finished, or saved and stopped on request.
};

// Returns the kind of a rank's end. `exit_code` is -1 when a signal ended the rank; `signal` is its number (0: none).
// `out_of_memory`: the kernel killed it because memory ran out.
ExitKind exit_kind(int exit_code, int signal, bool out_of_memory = false);

inline bool ended_as_expected(int exit_code, int signal) { return exit_kind(exit_code, signal) == ExitKind::kExpected; }

// Limits of the logs of failed ranks that are kept after their node is gone. Nodes use them to choose which logs they
// send, and the controller to choose which it keeps: a few logs explain an end, however many ranks fail at once.
inline constexpr int64_t kFailedLogLines = 200;
inline constexpr int64_t kFailedLogBytes = 64 << 10;
inline constexpr size_t kFailedLogs = 8;    // Per attempt.
inline constexpr int kFailedLogsAlike = 2;  // Per attempt, of ranks that failed alike.

// Whether a rank failed: it neither finished nor stopped on request, and its node did not end it. `stop_reason`: why
// its node ended it; empty if it did not.
bool has_failed(int exit_code, int signal, std::string_view stop_reason);

// Chooses the failed ranks of one attempt whose logs are kept.
class FailedLogs {
 public:
  // Returns whether to keep this rank's log, and if so counts it: at most kFailedLogs, and at most kFailedLogsAlike of
  // ranks that failed alike. Ranks failed alike if exit code, signal and last words agree apart from digits, or if all
  // of them only lost a peer.
  bool take(int exit_code, int signal, std::string_view last_words);
  // Like take() for a rank that a verdict names, without the limit of kFailedLogsAlike.
  bool take_named(int exit_code, int signal, std::string_view last_words);
  // Counts a log that is already kept.
  void add(int exit_code, int signal, std::string_view last_words);

 private:
  std::vector<std::string> kinds_;
};

// Returns the end of a log in the form in which it is kept: valid UTF-8, at most kFailedLogLines and kFailedLogBytes,
// without a partial first line if it has several lines.
std::string failed_log(std::string_view log);

// Returns the last `lines` lines of a text.
std::string_view last_lines(std::string_view text, int64_t lines);

}  // namespace titan::rank_protocol
