#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

constexpr int kJobPage = 1000;

std::string why(const v1::Job& job) {
  if (!job.failure_reason().empty()) return job.failure_reason();
  if (!job.pending_reason().empty()) return job.pending_reason();
  return job.title();
}

std::string step_text(const v1::Progress& progress) {
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

std::string loss_text(const v1::Progress& progress) {
  return progress.step() == 0 ? "-" : absl::StrFormat("%.4f", progress.loss());
}

absl::StatusOr<std::vector<v1::Job>> list_all(Client& client, const ListOptions& options) {
  v1::ListJobsRequest request;
  request.set_project(options.project);
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

std::string placement_text(const v1::Attempt& attempt) {
  return absl::StrJoin(attempt.placements(), ", ", [](std::string* out, const v1::Placement& place) {
    absl::StrAppend(out, place.node(), " (rank", place.num_ranks() == 1 ? " " : "s ", place.first_rank());
    if (place.num_ranks() > 1) absl::StrAppend(out, "-", place.first_rank() + place.num_ranks() - 1);
    absl::StrAppend(out, ")");
  });
}

void append_attempt(std::string& out, const v1::Attempt& attempt) {
  absl::StrAppend(&out, "  ", attempt.number(), "  ", time_text(attempt.start_time()), "  from step ",
                  attempt.resumed_step(), " to ", attempt.last_step(), "  on ", placement_text(attempt), "\n");
  if (!attempt.end_cause().empty()) {
    absl::StrAppend(&out, "     ended ", time_text(attempt.end_time()), ": ", attempt.end_cause(),
                    attempt.end_message().empty() ? "" : ": ", attempt.end_message(), "\n");
  }
  for (const v1::RankExit& exit : attempt.exits()) {
    if (exit.exit_code() == 0 && exit.signal() == 0) continue;
    absl::StrAppend(
        &out, "     rank ", exit.rank(), " on ", exit.node(), ": ",
        exit.signal() != 0 ? absl::StrCat("signal ", exit.signal()) : absl::StrCat("exit code ", exit.exit_code()),
        exit.message().empty() ? "" : ": ", exit.message(), "\n");
  }
  if (!attempt.phase_seconds().empty()) {
    std::vector<std::string> phases;
    for (const auto& [phase, seconds] : attempt.phase_seconds())
      phases.push_back(absl::StrFormat("%s %.2f s", phase, seconds));
    std::sort(phases.begin(), phases.end());
    absl::StrAppend(&out, "     recovery: ", absl::StrJoin(phases, ", "), "\n");
  }
}

std::string describe_text(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  std::string out;
  const auto row = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&out, "%-14s%s\n", name, value);
  };
  row("job", job.name());
  row("uid", job.uid());
  row("title", job.title());
  row("state", state_name(job.state()));
  if (!job.pending_reason().empty()) row("waits", job.pending_reason() + ": " + job.pending_message());
  if (!job.failure_reason().empty()) row("failed", job.failure_reason() + ": " + job.failure_message());
  row("dump folder", job.spec().dump_folder());
  row("ranks",
      absl::StrCat(
          job.spec().ranks(), " x ", job.spec().device(),
          job.spec().ranks_per_node() > 0 ? absl::StrCat(", ", job.spec().ranks_per_node(), " per node") : ""));
  row("priority", absl::StrCat(job.spec().priority()));
  row("created", time_text(job.create_time()));
  row("started", time_text(job.start_time()));
  row("ended", time_text(job.end_time()));
  row("step", step_text(progress));
  if (progress.step() > 0) {
    row("loss", loss_text(progress));
    row("grad norm", absl::StrFormat("%.4f", progress.grad_norm()));
    row("tokens/s", absl::StrFormat("%.0f", progress.tokens_per_second()));
    row("mfu", absl::StrFormat("%.2f %%", progress.mfu_percent()));
  }
  row("checkpoint", progress.committed_step() > 0 ? absl::StrCat("step ", progress.committed_step()) : "none yet");
  if (job.attempts_size() > 0) absl::StrAppend(&out, "attempts\n");
  for (const v1::Attempt& attempt : job.attempts()) append_attempt(out, attempt);
  return out;
}

}  // namespace

int list(const Globals& globals, const ListOptions& options) {
  Client client(globals.controller, globals.timeout);
  const auto jobs = list_all(client, options);
  if (!jobs.ok()) return report(jobs.status());
  if (globals.format != Format::kTable) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const v1::Job& job : *jobs) all.push_back(job_json(job));
    print(nlohmann::ordered_json{{"jobs", std::move(all)}}, globals.format);
    return kExitOk;
  }
  if (jobs->empty()) {
    note("no jobs; `titanctl submit FILE` queues one");
    return kExitOk;
  }
  Table table({"JOB", "STATE", "STEP", "LOSS", "RANKS", "ATTEMPTS", "AGE", "WHY / TITLE"});
  for (const v1::Job& job : *jobs) {
    table.add({short_name(job.name()), state_name(job.state()), step_text(job.progress()), loss_text(job.progress()),
               absl::StrCat(job.spec().ranks()), absl::StrCat(job.attempts_size()), age(job.create_time()), why(job)});
  }
  print(table.text());
  return kExitOk;
}

int describe(const Globals& globals, const std::string& name) {
  Client client(globals.controller, globals.timeout);
  const auto job = client.get_job(name);
  if (!job.ok()) return report(job.status());
  if (globals.format == Format::kTable) {
    print(describe_text(*job));
    note(absl::StrCat("`titanctl events ", short_name(job->name()), "` tells what happened, `titanctl logs ",
                      short_name(job->name()), "` what it printed"));
  } else {
    print(job_json(*job), globals.format);
  }
  return kExitOk;
}

int cancel(const Globals& globals, const std::vector<std::string>& jobs, bool now, bool wait_for_end) {
  if (wait_for_end) Interrupt::block_signals();
  Client client(globals.controller, globals.timeout);
  for (const std::string& name : jobs) {
    auto job = client.cancel_job(name, now);
    if (!job.ok()) return report(job.status());
    if (wait_for_end) {
      Stopper stopper;
      const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
      job = watch_job(client, job->name(), absl::Now() + globals.whole_wait(), stopper,
                      [](const v1::Job& seen) { return is_final(seen.state()); });
      if (absl::IsCancelled(job.status())) return kExitInterrupted;
      if (!job.ok()) return report(job.status());
    }
    if (globals.format != Format::kTable) print(job_json(*job), globals.format);
    note(absl::StrCat("job ", short_name(job->name()), " ", state_name(job->state()),
                      is_final(job->state()) ? ""
                      : now                  ? "; its ranks are being killed"
                                             : "; it saves at the next step edge first"));
  }
  return kExitOk;
}

int checkpoint(const Globals& globals, const std::string& name, bool wait_for_commit) {
  if (wait_for_commit) Interrupt::block_signals();
  Client client(globals.controller, globals.timeout);
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
