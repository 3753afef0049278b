#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_query.h"
#include "controller/cli/job_text.h"
#include "controller/cli/logs.h"
#include "controller/cli/message_json.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

constexpr int kLastLinesShown = 5;
constexpr absl::Duration kLastLinesTimeout = absl::Seconds(3);

// Returns the newest warnings and errors of a job, one of each kind; none when they cannot be read.
std::vector<v1::Event> latest_troubles(ControllerClient& client, const std::string& job) {
  std::deque<v1::Event> newest;
  Stopper stopper;
  (void)stream_events(client, {.job = job}, stopper, [&newest](const v1::Event& event) {
    add_problem(newest, event);
    return true;
  });
  return {newest.begin(), newest.end()};
}

// Returns the last lines of the rank that failed first in the newest attempt; empty when none failed, or when they are
// not available soon.
LastLines last_lines_of(ControllerClient& client, const v1::Job& job) {
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
      client, absl::Now() + kLastLinesTimeout, stopper,
      [&](grpc::ClientContext& context) { return client.jobs().TailLogs(&context, request); },
      [&last](const v1::LogChunk& chunk) {
        last.text += chunk.data();
        return false;
      },
      /*reconnect=*/false);
  return last;
}

// Describes what may still run, and where, for a job with unreachable ranks; "" for others.
std::string unreachable_text(const v1::Job& job) {
  if (job.pending_reason() != "NODE_UNREACHABLE") return "";
  return absl::StrCat("job ", short_name(job.name()), " is ", state_name(job.state()), ": ", job.pending_message());
}

// Returns how the newest attempt ended, which names what was not saved.
std::string end_text(const v1::Job& job) {
  if (job.attempts().empty() || job.attempts().rbegin()->end_message().empty()) return "";
  return absl::StrCat(": ", job.attempts().rbegin()->end_message());
}

// Watches until the job is over, and reports when it waits for an unreachable node. Errors: those of watch_job.
absl::StatusOr<v1::Job> watch_to_end(const Globals& globals, ControllerClient& client, const std::string& name) {
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

int update(const Globals& globals, const UpdateOptions& options) {
  v1::UpdateJobRequest request;
  if (options.priority) {
    request.mutable_job()->mutable_spec()->set_priority(*options.priority);
    request.mutable_update_mask()->add_paths("spec.priority");
  }
  if (options.title) {
    request.mutable_job()->set_title(*options.title);
    request.mutable_update_mask()->add_paths("title");
  }
  if (const absl::Status bad = add_label_changes(options.set_labels, request); !bad.ok()) return report(bad);
  if (request.update_mask().paths().empty()) {
    return report(absl::InvalidArgumentError("nothing to update: give --priority, --title or --label"));
  }
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto names = select_jobs(client, options.selection, "update", live_states());
  if (!names.ok()) return report(names.status());
  std::vector<nlohmann::ordered_json> done;
  const int code = on_each(*names, [&](const std::string& name) -> absl::Status {
    request.mutable_job()->set_name(name);
    TITAN_ASSIGN_OR_RETURN(const v1::Job job, client.update_job(request));
    done.push_back(job_json(job));
    note(absl::StrCat("job ", short_name(job.name()), " is updated"));
    return absl::OkStatus();
  });
  print_each(done, options.selection.names.size() != 1, globals.format);
  return code;
}

int describe(const Globals& globals, const std::string& name) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto job = client.get_job(name);
  if (!job.ok()) return report(job.status());
  if (globals.format == OutputFormat::kTable) {
    print_foreign(describe_text(*job, latest_troubles(client, job->name()), last_lines_of(client, *job)));
    note(absl::StrCat("`titanctl events ", short_name(job->name()), "` shows what happened, `titanctl logs ",
                      short_name(job->name()), "` what it printed"));
  } else {
    print(job_json(*job), globals.format);
  }
  return kExitOk;
}

int diagnose(const Globals& globals, const std::string& name, int attempt) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto diagnosis = client.get_diagnosis(name, attempt);
  if (!diagnosis.ok()) return report(diagnosis.status());
  if (globals.format == OutputFormat::kTable) {
    print(diagnosis->report());
  } else {
    print(to_json(*diagnosis), globals.format);
  }
  return kExitOk;
}

int cancel(const Globals& globals, const CancelOptions& options) {
  if (options.wait) Interrupt::block_signals();
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto names = select_jobs(client, options.selection, "cancel", live_states());
  if (!names.ok()) return report(names.status());
  // All are cancelled before any is waited for, and one that cannot be cancelled does not stop the others.
  std::vector<v1::Job> asked;
  int code = on_each(*names, [&](const std::string& name) -> absl::Status {
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
  print_each(done, options.selection.names.size() != 1, globals.format);
  return code;
}

int delete_jobs(const Globals& globals, const JobSelection& selection) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto names = select_jobs(client, selection, "delete", final_states());
  if (!names.ok()) return report(names.status());
  std::vector<nlohmann::ordered_json> done;
  const int code = on_each(*names, [&](const std::string& name) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const v1::Job job, client.delete_job(name));
    done.push_back(job_json(job));
    note(absl::StrCat("job ", short_name(job.name()), " is deleted; ", job.spec().dump_folder(), " stays"));
    return absl::OkStatus();
  });
  print_each(done, selection.names.size() != 1, globals.format);
  return code;
}

}  // namespace titan::cli
