#pragma once

// Classifies how ranks end, and chooses the failed ranks whose last log lines are worth keeping.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/rank_protocol/launch.h"

namespace titan::rank_protocol {

// What the end of a rank says about what went wrong, the most telling first: ends that name a cause come before those
// that have none, and these before consequences of another rank's end.
enum class ExitKind {
  kBadConfig,
  kUserError,
  kOutOfMemory,
  kStorage,
  kFenced,
  kFailed,    // Any other exit code.
  kKilled,    // By a signal.
  kPeerLost,  // A consequence.
  kAsAsked,   // Finished, or saved and left on request.
};

// `exit_code`: -1 when a signal ended it, whose number `signal` is (0: none). `out_of_memory`: the kernel ended it for
// want of memory.
ExitKind exit_kind(int exit_code, int signal, bool out_of_memory = false);

inline bool left_as_asked(int exit_code, int signal) { return exit_kind(exit_code, signal) == ExitKind::kAsAsked; }

// Of which failed ranks the end of the log is worth keeping where it outlives their node. A node chooses what it sends
// by these rules, the controller by the same ones what it keeps: however many ranks fail at once, few say it all.
inline constexpr int64_t kFailedLogLines = 200;
inline constexpr int64_t kFailedLogBytes = 64 << 10;
inline constexpr size_t kFailedLogs = 8;    // Of one attempt,
inline constexpr int kFailedLogsAlike = 2;  // and of ranks that failed alike.

// A rank that ended otherwise than as asked. `stop_reason`: why its node ended it; empty: nobody did.
bool has_failed(int exit_code, int signal, std::string_view stop_reason);

class FailedLogs {
 public:
  // Whether this rank's log is one to keep: the first ones are, and those that ended otherwise than the ones before.
  // Numbers in the last words tell none apart, and ranks that only lost a peer are all alike.
  bool take(int exit_code, int signal, std::string_view last_words);
  // Likewise of a rank that a verdict names: however many are like it.
  bool take_named(int exit_code, int signal, std::string_view last_words);
  // One that was kept before.
  void add(int exit_code, int signal, std::string_view last_words);

 private:
  std::vector<std::string> kinds_;
};

// The end of a log as it is kept: whole lines where there are any, kFailedLogLines and kFailedLogBytes at most, valid
// UTF-8. Also of a text that is too long already.
std::string failed_log(std::string_view log);

// The last lines of a text.
std::string_view last_lines(std::string_view text, int64_t lines);

}  // namespace titan::rank_protocol
