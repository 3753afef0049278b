#pragma once

// Carries out the verbs `logs` and `events`: streams rank logs line by line, and follows events across lost
// connections.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/output.h"
#include "controller/cli/watch.h"

namespace titan::cli {

// Whole lines out of the pieces in which logs arrive, for each rank of each attempt by itself.
class LogLines {
 public:
  using Take = std::function<bool(int attempt, int rank, const std::string& line)>;

  // Hands over each line that is whole now, without its end. False once `take` gave false.
  bool add(int attempt, int rank, std::string_view data, const Take& take);
  // What is left at the end: lines that nothing has ended.
  bool finish(const Take& take);

 private:
  std::map<std::pair<int, int>, std::string> rest_;  // By (attempt, rank).
};

// Where a reader of events is. Events of one transaction share its revision, and a stream may break between two of
// them: a revision is complete only when a later one is seen. Until then a new stream begins before it, and what was
// seen of it is passed over.
class EventCursor {
 public:
  explicit EventCursor(int64_t after) : complete_(after), current_(after) {}

  // A new stream begins; the revision after which it is to be asked for events.
  int64_t resume() {
    to_skip_ = seen_;
    ++streams_;
    return complete_;
  }

  // The controller does not know that revision, and its newest is `newest`: its store was set back. False for the
  // revision that the reader itself began with.
  bool set_back(int64_t newest) {
    if (streams_ < 2) return false;
    complete_ = current_ = newest;
    seen_ = to_skip_ = 0;
    return true;
  }

  // The stream's next event. False when it was seen before.
  bool is_new(int64_t revision) {
    if (revision != current_) {
      complete_ = current_;
      current_ = revision;
      seen_ = to_skip_ = 0;
    }
    if (to_skip_ > 0) {
      --to_skip_;
      return false;
    }
    ++seen_;
    return true;
  }

 private:
  int64_t complete_;  // All its events were seen.
  int64_t current_;   // Of the newest event seen.
  int64_t seen_ = 0;  // Events of `current_`.
  int streams_ = 0;
  int64_t to_skip_ = 0;  // Of them, not sent again yet.
};

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
