#pragma once

// Of which failed ranks the end of the log is worth keeping where it outlives their node. A node chooses what it sends
// by these rules, the controller by the same ones what it keeps: however many ranks fail at once, few say it all.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace titan::rank_protocol {

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
