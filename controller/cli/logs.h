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

// Makes whole lines out of the pieces in which logs arrive, separately for each rank of each attempt.
class LogLines {
 public:
  using Take = std::function<bool(int attempt, int rank, const std::string& line)>;

  // Passes each line that is now whole to `take`, without its end. Returns false once `take` did.
  bool add(int attempt, int rank, std::string_view data, const Take& take);
  // Passes on the lines that are left without an end.
  bool finish(const Take& take);

 private:
  std::map<std::pair<int, int>, std::string> rest_;  // By (attempt, rank).
};

// Position of a reader of events. Events of one transaction share its revision, and a stream may break between two of
// them: a revision is complete only when a later one is seen. Until then a new stream begins before it, and skips what
// was seen of it.
class EventCursor {
 public:
  explicit EventCursor(int64_t after) : complete_(after), current_(after) {}

  // Prepares for a new stream; returns the revision after which it must request events.
  int64_t resume() {
    to_skip_ = seen_;
    ++streams_;
    return complete_;
  }

  // Handles a controller that does not know the requested revision because its store was set back; its newest is
  // `newest`. Returns false when that revision was the one that the reader itself began with.
  bool set_back(int64_t newest) {
    if (streams_ < 2) return false;
    complete_ = current_ = newest;
    seen_ = to_skip_ = 0;
    return true;
  }

  // Takes the stream's next event. Returns false when it was seen before.
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
  int64_t complete_;  // All events up to this revision were seen.
  int64_t current_;   // Revision of the newest event seen.
  int64_t seen_ = 0;  // Events of `current_` seen so far.
  int streams_ = 0;
  int64_t to_skip_ = 0;  // Those of them that the new stream has not sent again yet.
};

// Prints rank logs to stdout; survives a controller restart without repeating or losing a line. With -o json and yaml a
// line of a log is an object {"attempt", "rank", "line"}: one per line as JSON, a list that grows as YAML.
class LogPrinter {
 public:
  LogPrinter(bool prefix_ranks, bool announce_attempts, OutputFormat format = OutputFormat::kTable)
      : prefix_ranks_(prefix_ranks), announce_attempts_(announce_attempts), format_(format) {}

  // Prints until the end of the logs, or with options.follow the end of the job. Errors: those of the call, Cancelled
  // by the stopper.
  absl::Status stream(ControllerClient& client, const LogsOptions& options, Stopper& stopper);

 private:
  bool print_chunk(const v1::LogChunk& chunk);  // False once stdout has no reader.
  bool print_lines(int rank, std::string_view data);
  bool print_line(int attempt, int rank, const std::string& line) const;

  bool prefix_ranks_;
  bool announce_attempts_;
  OutputFormat format_;
  LogLines lines_;  // Lines for JSON and YAML documents.
  int attempt_ = 0;
  std::map<std::pair<int, int>, int64_t> ends_;  // Log bytes seen of each (attempt, rank).
};

// Calls `seen` with each event until it returns false or the stream ends. With options.follow it waits for a lost
// controller.
absl::Status stream_events(ControllerClient& client, const EventsOptions& options, Stopper& stopper,
                           const std::function<bool(const v1::Event&)>& seen);

}  // namespace titan::cli
