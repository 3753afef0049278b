#include <unistd.h>

#include <algorithm>
#include <deque>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "common/text/shape.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_json.h"
#include "controller/cli/job_text.h"
#include "controller/cli/labels.h"
#include "controller/cli/log_printer.h"
#include "controller/cli/output.h"
#include "controller/cli/proto_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

constexpr int kJobPage = 1000;
constexpr size_t kTroublesShown = 5;
constexpr int kLastLinesShown = 5;
constexpr absl::Duration kLastLinesPatience = absl::Seconds(3);

// All flags in one filter.
absl::StatusOr<std::string> filter_of(const ListOptions& options) {
  std::vector<std::string> all;
  if (!options.filter.empty()) all.push_back(options.filter);
  for (const std::string& word : options.labels) {
    TITAN_ASSIGN_OR_RETURN(all.emplace_back(), label_filter(word));
  }
  if (!options.owner.empty()) {
    const bool whole = options.owner.find(':') != std::string::npos;
    all.push_back(absl::StrCat("owner = ", quote(whole ? options.owner : "user:" + options.owner)));
  }
  if (all.size() <= 1) return all.empty() ? "" : all[0];
  // Columns of an error are those of --filter and one more.
  if (!options.filter.empty()) all[0] = absl::StrCat("(", all[0], ")");
  return absl::StrJoin(all, " AND ");
}

absl::StatusOr<std::vector<v1::Job>> list_all(Client& client, const ListOptions& options) {
  v1::ListJobsRequest request;
  request.set_project(options.project);
  request.set_order_by(options.sort_by);
  TITAN_ASSIGN_OR_RETURN(*request.mutable_filter(), filter_of(options));
  for (const std::string& text : options.states) {
    const auto state = parse_state(text);
    if (!state.ok()) return state.status();
    request.add_states(*state);
  }
  std::vector<v1::Job> jobs;
  do {
    const int missing = options.limit - static_cast<int>(jobs.size());
    request.set_page_size(options.limit > 0 ? std::min(kJobPage, missing) : kJobPage);
    const auto page = client.list_jobs(request);
    if (!page.ok()) return page.status();
    jobs.insert(jobs.end(), page->jobs().begin(), page->jobs().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && (options.limit == 0 || static_cast<int>(jobs.size()) < options.limit));
  return jobs;
}

// Without how often it was said: the controller adds that.
std::string kind_of(const std::string& message) { return text::shape_of(message.substr(0, message.find(" (said "))); }

// The newest warnings and errors of a job, of each kind one; none when they cannot be read.
std::vector<v1::Event> latest_troubles(Client& client, const std::string& job) {
  std::deque<v1::Event> newest;
  Stopper stopper;
  (void)stream_events(client, {.job = job}, stopper, [&newest](const v1::Event& event) {
    if (event.severity() != "warning" && event.severity() != "error") return true;
    // Of one kind the newest: what repeats itself must not push out the rest.
    std::erase_if(newest, [&](const v1::Event& other) {
      return other.reason() == event.reason() && kind_of(other.message()) == kind_of(event.message());
    });
    newest.push_back(event);
    if (newest.size() > kTroublesShown) newest.pop_front();
    return true;
  });
  return {newest.begin(), newest.end()};
}

// Of the newest attempt, unless it went well or has not ended. Nothing when they cannot be had soon.
LastLines last_lines_of(Client& client, const v1::Job& job) {
  if (job.attempts().empty()) return {};
  const v1::Attempt& attempt = *job.attempts().rbegin();
  const v1::RankExit* const failed = first_failed(attempt);
  if (failed == nullptr) return {};
  LastLines last{attempt.number(), failed->rank(), ""};
  v1::TailLogsRequest request;
  request.set_name(job.name());
  request.set_attempt(last.attempt);
  request.add_ranks(last.rank);
  request.set_tail_lines(kLastLinesShown);
  Stopper stopper;
  (void)follow_stream<v1::LogChunk>(
      client, absl::Now() + kLastLinesPatience, stopper,
      [&](grpc::ClientContext& context) { return client.jobs().TailLogs(&context, request); },
      [&last](const v1::LogChunk& chunk) {
        last.text += chunk.data();
        return false;
      },
      /*reconnect=*/false);
  return last;
}

absl::StatusOr<std::vector<std::string>> jobs_not_over(Client& client) {
  ListOptions options;
  for (int i = v1::Job::QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::Job::State>(i);
    if (!is_final(state)) options.states.push_back(state_name(state));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, list_all(client, options));
  std::vector<std::string> names;
  for (const v1::Job& job : jobs) names.push_back(job.name());
  return names;
}

// For `cancel --all`: a person at a terminal is asked, a script has to say --yes.
absl::Status confirm_cancel(const std::vector<std::string>& jobs, bool yes) {
  if (yes || jobs.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat(
      counted(jobs.size(), "job"), " (",
      absl::StrJoin(jobs, ", ", [](std::string* out, const std::string& job) { out->append(short_name(job)); }), ")");
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--all would cancel ", what, "; --yes confirms it"));
  }
  std::cerr << "cancel " << what << "? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return absl::OkStatus();
  return absl::CancelledError("nothing was cancelled");
}

// Of a job whose ranks cannot be reached: what may still run, and where.
std::string unreachable_text(const v1::Job& job) {
  if (job.pending_reason() != "NODE_UNREACHABLE") return "";
  return absl::StrCat("job ", short_name(job.name()), " is ", state_name(job.state()), ": ", job.pending_message());
}

// How its newest attempt ended, which says what was not saved.
std::string end_text(const v1::Job& job) {
  if (job.attempts().empty() || job.attempts().rbegin()->end_message().empty()) return "";
  return absl::StrCat(": ", job.attempts().rbegin()->end_message());
}

// Watches until the job is over, and says when that waits for a node that cannot be reached. Errors: those of
// watch_job.
absl::StatusOr<v1::Job> watch_to_end(const Globals& globals, Client& client, const std::string& name) {
  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  std::string said;
  return watch_job(client, name, absl::Now() + globals.whole_wait(), stopper, [&said](const v1::Job& seen) {
    const std::string text = unreachable_text(seen);
    if (!text.empty() && text != said) note(text);
    said = text;
    return is_final(seen.state());
  });
}

}  // namespace

int list(const Globals& globals, const ListOptions& options) {
  Client client(globals.controller, globals.timeout, globals.access);
  const auto jobs = list_all(client, options);
  if (!jobs.ok()) return report(jobs.status());
  if (globals.format != Format::kTable) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const v1::Job& job : *jobs) all.push_back(job_json(job));
    print(nlohmann::ordered_json{{"jobs", std::move(all)}}, globals.format);
    return kExitOk;
  }
  if (jobs->empty()) {
    const bool all = options.states.empty() && options.filter.empty() && options.labels.empty() &&
                     options.owner.empty() && options.project.empty();
    note(all ? "no jobs; `titanctl submit FILE` queues one" : "no such jobs");
    return kExitOk;
  }
  print(list_text(*jobs));
  return kExitOk;
}

int update(const Globals& globals, const UpdateOptions& options) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(options.job);
  if (options.priority) {
    request.mutable_job()->mutable_spec()->set_priority(*options.priority);
    request.mutable_update_mask()->add_paths("spec.priority");
  }
  if (options.title) {
    request.mutable_job()->set_title(*options.title);
    request.mutable_update_mask()->add_paths("title");
  }
  if (const absl::Status bad = add_label_changes(options.labels, request); !bad.ok()) return report(bad);
  if (request.update_mask().paths().empty()) {
    return report(absl::InvalidArgumentError("nothing to update: give --priority, --title or --label"));
  }
  Client client(globals.controller, globals.timeout, globals.access);
  const auto job = client.update_job(request);
  if (!job.ok()) return report(job.status());
  if (globals.format != Format::kTable) print(job_json(*job), globals.format);
  note(absl::StrCat("job ", short_name(job->name()), " is updated"));
  return kExitOk;
}

int describe(const Globals& globals, const std::string& name) {
  Client client(globals.controller, globals.timeout, globals.access);
  const auto job = client.get_job(name);
  if (!job.ok()) return report(job.status());
  if (globals.format == Format::kTable) {
    print_foreign(describe_text(*job, latest_troubles(client, job->name()), last_lines_of(client, *job)));
    note(absl::StrCat("`titanctl events ", short_name(job->name()), "` tells what happened, `titanctl logs ",
                      short_name(job->name()), "` what it printed"));
  } else {
    print(job_json(*job), globals.format);
  }
  return kExitOk;
}

int diagnose(const Globals& globals, const std::string& name, int attempt) {
  Client client(globals.controller, globals.timeout, globals.access);
  const auto diagnosis = client.get_diagnosis(name, attempt);
  if (!diagnosis.ok()) return report(diagnosis.status());
  if (globals.format == Format::kTable) {
    print(diagnosis->report());
  } else {
    print(to_json(*diagnosis), globals.format);
  }
  return kExitOk;
}

int cancel(const Globals& globals, const CancelOptions& options) {
  if (options.jobs.empty() != options.all) {
    return report(absl::InvalidArgumentError(options.all ? "--all takes no job names" : "job is required, or --all"));
  }
  if (options.wait) Interrupt::block_signals();
  Client client(globals.controller, globals.timeout, globals.access);
  std::vector<std::string> names = options.jobs;
  if (options.all) {
    const auto found = jobs_not_over(client);
    if (!found.ok()) return report(found.status());
    names = *found;
    if (const absl::Status confirmed = confirm_cancel(names, options.yes); !confirmed.ok()) return report(confirmed);
    if (names.empty()) note("no job is queued or running");
  }
  // All are asked before one is waited for, and one that cannot be cancelled keeps no other from it.
  std::vector<v1::Job> asked;
  int code = on_each(names, [&](const std::string& name) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(v1::Job job, client.cancel_job(name, options.now));
    asked.push_back(std::move(job));
    return absl::OkStatus();
  });
  std::vector<nlohmann::ordered_json> done;
  for (v1::Job& job : asked) {
    if (options.wait) {
      const auto ended = watch_to_end(globals, client, job.name());
      if (absl::IsCancelled(ended.status())) {
        code = kExitInterrupted;
        break;
      }
      if (!ended.ok()) {
        const int failed = report(ended.status());
        if (code == kExitOk) code = failed;
        continue;
      }
      job = *ended;
    }
    done.push_back(job_json(job));
    const std::string unreachable = unreachable_text(job);
    if (!unreachable.empty()) note(unreachable);
    note(absl::StrCat("job ", short_name(job.name()), " ", state_name(job.state()),
                      is_final(job.state()) ? end_text(job)
                      : options.now
                          ? "; its ranks are being killed"
                          : absl::StrCat("; it saves at the next step edge first, and `titanctl cancel --now ",
                                         short_name(job.name()), "` does not wait for that")));
  }
  print_each(done, options.all || names.size() > 1, globals.format);
  return code;
}

int delete_jobs(const Globals& globals, const std::vector<std::string>& jobs) {
  Client client(globals.controller, globals.timeout, globals.access);
  std::vector<nlohmann::ordered_json> done;
  const int code = on_each(jobs, [&](const std::string& name) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const v1::Job job, client.delete_job(name));
    done.push_back(job_json(job));
    note(absl::StrCat("job ", short_name(job.name()), " is deleted; ", job.spec().dump_folder(), " stays"));
    return absl::OkStatus();
  });
  print_each(done, jobs.size() > 1, globals.format);
  return code;
}

int checkpoint(const Globals& globals, const std::string& name, bool wait_for_commit) {
  if (wait_for_commit) Interrupt::block_signals();
  Client client(globals.controller, globals.timeout, globals.access);
  const auto before = client.get_job(name);
  if (!before.ok()) return report(before.status());
  auto job = client.checkpoint_job(name);
  if (!job.ok()) return report(job.status());
  if (wait_for_commit) {
    Stopper stopper;
    const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
    const int64_t known = before->progress().committed_step();
    job = watch_job(client, job->name(), absl::Now() + globals.whole_wait(), stopper, [known](const v1::Job& seen) {
      return seen.progress().committed_step() > known || is_final(seen.state());
    });
    if (absl::IsCancelled(job.status())) return kExitInterrupted;
    if (!job.ok()) return report(job.status());
    if (job->progress().committed_step() <= known) return report_end(*job) == kExitOk ? kExitOk : kExitFailed;
    note(absl::StrCat("step ", job->progress().committed_step(), " is saved under ", job->spec().dump_folder()));
  } else {
    note(absl::StrCat("job ", short_name(job->name()), " saves at its next step edge; `titanctl events -f ",
                      short_name(job->name()), "` shows the commit"));
  }
  if (globals.format != Format::kTable) print(job_json(*job), globals.format);
  return kExitOk;
}

}  // namespace titan::cli
