#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Describes a rank that holds up its peers, and by how much.
std::string slow_text(const v1::SlowRank& slow);

// Returns the failed rank that best explains an attempt: of the ranks with a kept log the one that was reported first,
// where ranks that only lost a peer come last. Null if no rank has a kept log.
const v1::RankExit* first_failed(const v1::Attempt& attempt);

// The last lines that a rank printed.
struct LastLines {
  int attempt = 0;
  int rank = 0;
  std::string text;
};

// Returns `mark` and, for example, "12s"; "-" when the duration is unknown.
std::string span_text(const std::optional<absl::Duration>& duration, const char* mark = "");
// Return "12/100", and the loss of that step ("-" before the first).
std::string step_text(const v1::Progress& progress);
std::string loss_text(const v1::Progress& progress);

// Adds an event to the warnings and errors that describe_text() shows: the newest five, and only the last of each kind
// (a reason and the shape of its message), so that repeated events do not push out the rest.
void add_problem(std::deque<v1::Event>& newest, const v1::Event& event);

// Returns the page of `titanctl describe`, which ends with recent problems and the last lines of the rank that failed
// first.
std::string describe_text(const v1::Job& job, const std::vector<v1::Event>& troubles, const LastLines& last = {});

}  // namespace titan::cli
