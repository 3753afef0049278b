#include "controller/cli/job_query.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "controller/cli/job_names.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

absl::Status no_label(const char* flag, const std::string& word, const char* form) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " '", word, "': write ", form));
}

absl::StatusOr<std::pair<std::string, std::string>> parse_label(const std::string& word, const char* form) {
  const size_t equals = word.find('=');
  if (equals == 0 || equals == word.npos) return no_label("--label", word, form);
  return std::pair(word.substr(0, equals), word.substr(equals + 1));
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words) {
  std::map<std::string, std::string> labels;
  for (const std::string& word : words) {
    TITAN_ASSIGN_OR_RETURN(const auto label, parse_label(word, "KEY=VALUE"));
    labels[label.first] = label.second;
  }
  return labels;
}

absl::Status add_label_changes(const std::vector<std::string>& words, v1::UpdateJobRequest& request) {
  for (const std::string& word : words) {
    std::string key;
    if (word.size() > 1 && absl::EndsWith(word, "-") && !absl::StrContains(word, "=")) {
      key = word.substr(0, word.size() - 1);
    } else {
      TITAN_ASSIGN_OR_RETURN(const auto label, parse_label(word, "KEY=VALUE, or KEY- to remove it"));
      key = label.first;
      (*request.mutable_job()->mutable_labels())[key] = label.second;
    }
    request.mutable_update_mask()->add_paths(absl::StrCat("labels.", key));
  }
  return absl::OkStatus();
}

std::string quote(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

absl::StatusOr<std::string> label_filter(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == word.npos) return absl::StrCat("labels:", quote(word));
  const bool unequal = equals > 0 && word[equals - 1] == '!';
  const std::string key = word.substr(0, unequal ? equals - 1 : equals);
  if (key.empty()) return no_label("--label", word, "KEY=VALUE, KEY!=VALUE or KEY");
  return absl::StrCat("labels.", quote(key), unequal ? " != " : " = ", quote(word.substr(equals + 1)));
}

namespace {

constexpr int kJobPage = 1000;
constexpr size_t kMaxNamed = 20;
constexpr char kAllProjects[] = "*";
constexpr char kMe[] = "me";

std::string owner_filter(const std::string& owner) {
  if (owner == kMe) return "owner = me";
  const bool whole = owner.find(':') != std::string::npos;
  return absl::StrCat("owner = ", quote(whole ? owner : "user:" + owner));
}

// Combines all flags in one filter.
absl::StatusOr<std::string> filter_of(const JobQuery& query) {
  std::vector<std::string> all;
  if (!query.filter.empty()) all.push_back(query.filter);
  for (const std::string& word : query.labels) {
    TITAN_ASSIGN_OR_RETURN(all.emplace_back(), label_filter(word));
  }
  if (!query.owner.empty()) all.push_back(owner_filter(query.owner));
  if (all.size() <= 1) return all.empty() ? "" : all[0];
  // Columns in an error then exceed those of --filter by one.
  if (!query.filter.empty()) all[0] = absl::StrCat("(", all[0], ")");
  return absl::StrJoin(all, " AND ");
}

std::vector<std::string> states_where(bool final) {
  std::vector<std::string> states;
  for (int i = v1::Job::QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::Job::State>(i);
    if (is_final(state) == final) states.push_back(state_name(state));
  }
  return states;
}

std::string named(const std::vector<std::string>& jobs) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(jobs.size(), kMaxNamed); ++i) shown.push_back(short_name(jobs[i]));
  return absl::StrCat(absl::StrJoin(shown, ", "), jobs.size() > kMaxNamed ? ", ..." : "");
}

absl::Status confirm(const std::vector<std::string>& jobs, const std::string& verb, bool yes) {
  if (yes || jobs.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat(counted(jobs.size(), "job"), " (", named(jobs), ")");
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0)
    return absl::InvalidArgumentError(absl::StrCat("this would ", verb, " ", what, "; --yes confirms it"));
  std::cerr << verb << " " << what << "? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return absl::OkStatus();
  return absl::CancelledError("nothing was changed");
}

absl::Status check(const JobSelection& selection) {
  const bool by_kind = selection.all || !selection.labels.empty() || !selection.owner.empty();
  if (!selection.names.empty() && by_kind) {
    return absl::InvalidArgumentError(selection.all ? "--all takes no job names"
                                                    : "--label and --owner take no job names");
  }
  if (selection.names.empty() && !by_kind)
    return absl::InvalidArgumentError("name a job, or give --label, --owner or --all");
  if (selection.all_owners && (!selection.all || !selection.owner.empty()))
    return absl::InvalidArgumentError("--all-owners needs --all, and cannot be given together with --owner");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<v1::Job>> find_jobs(ControllerClient& client, const JobQuery& query) {
  v1::ListJobsRequest request;
  if (!query.project.empty()) {
    if (query.project != kAllProjects) request.set_project(query.project);
  } else if (project_is_given()) {
    request.set_project(project());
  }
  request.set_order_by(query.sort_by);
  TITAN_ASSIGN_OR_RETURN(*request.mutable_filter(), filter_of(query));
  for (const std::string& text : query.states) {
    const auto state = parse_state(text);
    if (!state.ok()) return state.status();
    request.add_states(*state);
  }
  std::vector<v1::Job> jobs;
  do {
    const int missing = query.limit - static_cast<int>(jobs.size());
    request.set_page_size(query.limit > 0 ? std::min(kJobPage, missing) : kJobPage);
    const auto page = client.list_jobs(request);
    if (!page.ok()) return page.status();
    jobs.insert(jobs.end(), page->jobs().begin(), page->jobs().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && (query.limit == 0 || static_cast<int>(jobs.size()) < query.limit));
  return jobs;
}

std::vector<std::string> live_states() { return states_where(/*final=*/false); }
std::vector<std::string> final_states() { return states_where(/*final=*/true); }

absl::StatusOr<std::vector<std::string>> select_jobs(ControllerClient& client, const JobSelection& selection,
                                                     const std::string& verb, std::vector<std::string> states) {
  TITAN_RETURN_IF_ERROR(check(selection));
  if (!selection.names.empty()) return selection.names;
  JobQuery query{.states = std::move(states), .labels = selection.labels, .owner = selection.owner};
  if (query.owner.empty() && !selection.all_owners && (selection.all || selection.labels.empty())) query.owner = kMe;
  TITAN_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, find_jobs(client, query));
  std::vector<std::string> names;
  for (const v1::Job& job : jobs) names.push_back(job.name());
  if (names.empty())
    note(absl::StrCat("no such job to ", verb,
                      selection.all && !selection.all_owners ? "; jobs of others need --all-owners" : ""));
  TITAN_RETURN_IF_ERROR(confirm(names, verb, selection.yes));
  return names;
}

}  // namespace titan::cli
