#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/log_lines.h"
#include "controller/cli/output.h"
#include "controller/cli/watch.h"

namespace titan::cli {

// Prints rank logs to stdout; survives a controller restart without repeating or losing a line. With -o json and yaml a
// line of a log is an object {"attempt", "rank", "line"}: as JSON one a line, as YAML a list that grows.
class LogPrinter {
 public:
  LogPrinter(bool prefix_ranks, bool announce_attempts, Format format = Format::kTable)
      : prefix_ranks_(prefix_ranks), announce_attempts_(announce_attempts), format_(format) {}

  // Until the end of the logs, with options.follow the end of the job. Errors: those of the call, Cancelled by the
  // stopper.
  absl::Status stream(Client& client, const LogsOptions& options, Stopper& stopper);

 private:
  bool print_chunk(const v1::LogChunk& chunk);  // False once nobody reads stdout.
  bool print_lines(int rank, std::string_view data);
  bool print_line(int attempt, int rank, const std::string& line) const;

  bool prefix_ranks_;
  bool announce_attempts_;
  Format format_;
  LogLines lines_;  // Of which documents are made.
  int attempt_ = 0;
  std::map<std::pair<int, int>, int64_t> ends_;  // Log bytes seen of each (attempt, rank).
};

// Calls `seen` with each event until it returns false or the stream ends; with options.follow a lost controller is
// waited for.
absl::Status stream_events(Client& client, const EventsOptions& options, Stopper& stopper,
                           const std::function<bool(const v1::Event&)>& seen);

}  // namespace titan::cli
