#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// A rank that holds up its peers, and by how much.
std::string slow_text(const v1::SlowRank& slow);

// The failed rank that says most about an attempt: of those whose log the controller keeps the one that was told first,
// before ranks that only lost a peer. Null: there is none.
const v1::RankExit* first_failed(const v1::Attempt& attempt);

// What a rank printed last.
struct LastLines {
  int attempt = 0;
  int rank = 0;
  std::string text;
};

// "12s", after `mark`; "-" when it is not known.
std::string span_text(const std::optional<absl::Duration>& duration, const char* mark = "");
// "12/100", and the loss of that step.
std::string step_text(const v1::Progress& progress);
std::string loss_text(const v1::Progress& progress);

// Adds a job's event to the warnings and errors that describe_text() shows: the newest five, of each kind (a reason and
// the shape of its message) only the last, so that what repeats itself does not push out the rest.
void add_trouble(std::deque<v1::Event>& newest, const v1::Event& event);

// The page of `titanctl describe`, which ends with what went wrong lately and the last words of the rank that failed
// first.
std::string describe_text(const v1::Job& job, const std::vector<v1::Event>& troubles, const LastLines& last = {});

}  // namespace titan::cli
