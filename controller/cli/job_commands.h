#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/cli/globals.h"
#include "controller/cli/job_query.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

// One function for each verb of `titanctl job`; each returns the exit code.

struct SubmitOptions {
  Source source;
  std::string earlier;  // For `resubmit`: the job whose spec replaces a file's; `source` has the overrides.
  bool dry_run = false;
  bool require_fit = false;
  bool wait = false;
  bool quiet = false;
  std::string job_id;
  std::vector<std::string> labels;  // KEY=VALUE.
};
int submit(const Globals& globals, const SubmitOptions& options);

int validate(const Globals& globals, const Source& source);

struct ListOptions {
  JobQuery query;
  bool all = false;  // Include jobs that ended long ago, which a table hides unless query.is_choice().
};
int list(const Globals& globals, const ListOptions& options);

struct UpdateOptions {
  JobSelection selection;
  std::optional<int> priority;
  std::optional<std::string> title;
  std::vector<std::string> set_labels;  // KEY=VALUE, or KEY- to remove it.
};
int update(const Globals& globals, const UpdateOptions& options);

int describe(const Globals& globals, const std::string& job);

// Shows what the ranks of an attempt did when it stalled; attempt 0: the newest that was diagnosed.
int diagnose(const Globals& globals, const std::string& job, int attempt);

struct CancelOptions {
  JobSelection selection;
  bool now = false;
  bool wait = false;
};
int cancel(const Globals& globals, const CancelOptions& options);

// Deletes jobs that are over from the controller's store.
int delete_jobs(const Globals& globals, const JobSelection& selection);

int checkpoint(const Globals& globals, const std::string& job, bool wait);

struct ProfileOptions {
  std::string job;
  std::vector<int> ranks = {0};
  int steps = 3;
  std::string folder;  // "": named after the job and the last step.
};
int profile(const Globals& globals, const ProfileOptions& options);

// `until`: empty for the end of the job, a state, "step=N" or "committed=N".
int wait(const Globals& globals, const std::string& job, const std::string& until);

struct LogsOptions {
  std::string job;
  bool follow = false;
  std::vector<int> ranks;  // Empty: all.
  int attempt = 0;         // 0: the newest, with follow each later one too.
  int64_t tail = -1;       // -1: from the start.
};
int logs(const Globals& globals, const LogsOptions& options);

struct EventsOptions {
  std::string job;
  std::string node;
  bool follow = false;
  int64_t after = 0;  // Revision after which events begin.
};
int events(const Globals& globals, const EventsOptions& options);

}  // namespace titan::cli
