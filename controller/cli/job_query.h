#pragma once

// Selects jobs by the flags of a verb: states, projects, owners, filters, and labels as the command line writes them.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/cli/client.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Parses labels such as "team=vision". The controller decides which keys and values are valid. Errors: InvalidArgument.
absl::StatusOr<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);

// Adds label changes to the job and the mask of an update: "team=vision" sets one, "team-" removes it. Errors:
// InvalidArgument.
absl::Status add_label_changes(const std::vector<std::string>& words, v1::UpdateJobRequest& request);

// Returns the filter for "team=vision", "team!=vision" or "team". Errors: InvalidArgument.
absl::StatusOr<std::string> label_filter(const std::string& word);

// Returns the text in double quotes, for a filter.
std::string quote(const std::string& text);

// Jobs that a command line selects.
struct JobQuery {
  std::vector<std::string> states;  // Any case; empty: all.
  std::string project;              // Empty: that of TITAN_PROJECT, else all of them; "*": all of them.
  std::string filter;
  std::string sort_by;
  std::vector<std::string> labels;  // KEY=VALUE, KEY!=VALUE, or KEY.
  std::string owner;                // A user's name, "user:NAME", "peer:ADDRESS", or "me".
  int limit = 0;                    // 0: all.

  // Returns whether it selects jobs by more than their project.
  bool is_choice() const {
    return !states.empty() || !filter.empty() || !labels.empty() || !owner.empty() || limit > 0;
  }
};

// Finds the jobs, newest first unless sorted. Errors: InvalidArgument; those of the call.
absl::StatusOr<std::vector<v1::Job>> find_jobs(ControllerClient& client, const JobQuery& query);

// Return the states that a job leaves again, and those in which it stays.
std::vector<std::string> live_states();
std::vector<std::string> final_states();

// Jobs chosen by name, or by what they have in common.
struct JobSelection {
  std::vector<std::string> names;
  bool all = false;         // All jobs of the user.
  bool all_owners = false;  // With `all`: jobs of all users.
  std::vector<std::string> labels;
  std::string owner;
  bool yes = false;  // Skip the confirmation.
};

// Returns the names of the selected jobs. Those that are named may be in any state; others must be in one of `states`.
// A person at a terminal must confirm before `verb` applies to jobs that were not named; a script must pass --yes.
// Errors: InvalidArgument, Cancelled; those of the call.
absl::StatusOr<std::vector<std::string>> select_jobs(ControllerClient& client, const JobSelection& selection,
                                                     const std::string& verb, std::vector<std::string> states);

}  // namespace titan::cli
