#include "controller/cli/list.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/text/quantities.h"
#include "controller/cli/client.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_progress.h"
#include "controller/cli/job_query.h"
#include "controller/cli/job_text.h"
#include "controller/cli/message_json.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr size_t kLastColumn = 60;

std::string why(const v1::Job& job, const Pace& pace) {
  if (pace.stalled) return "no step for " + span_text(pace.since_step);
  if (!job.pending_reason().empty()) return job.pending_reason();
  if (!job.failure_reason().empty()) return job.failure_reason();
  return job.title();
}

// Returns the nodes of the newest attempt.
std::string nodes_of(const v1::Job& job) {
  if (job.attempts().empty()) return "-";
  std::set<std::string> nodes;
  for (const v1::Placement& place : job.attempts().rbegin()->placements()) nodes.insert(place.node());
  return nodes.empty() ? "-" : absl::StrJoin(nodes, ",");
}

std::string owner_of(const v1::Job& job) {
  constexpr std::string_view kUser = "user:";
  const std::string& owner = job.owner();
  if (owner.empty()) return "-";
  return owner.rfind(kUser, 0) == 0 ? owner.substr(kUser.size()) : owner;
}

}  // namespace

std::string list_text(const std::vector<v1::Job>& jobs, bool wide) {
  std::vector<std::string> header = {"JOB", "STATE", "STEP", "LOSS", "RANKS", "ATTEMPTS"};
  if (wide) header.insert(header.end(), {"OWNER", "PROJECT", "PRIORITY", "NODES"});
  header.insert(header.end(), {"TIME", "LEFT", "AGE", "FINISHED", "WHY / TITLE"});
  Table table(std::move(header));
  for (const v1::Job& job : jobs) {
    const Pace pace = pace_of(job, absl::Now());
    std::vector<std::string> row = {short_name(job.name()),           state_name(job.state()),
                                    step_text(job.progress()),        loss_text(job.progress()),
                                    absl::StrCat(job.spec().ranks()), absl::StrCat(job.attempts_size())};
    if (wide) {
      row.insert(row.end(), {owner_of(job), job.spec().project(), absl::StrCat(job.spec().priority()), nodes_of(job)});
    }
    row.insert(row.end(), {span_text(pace.elapsed), span_text(pace.left, "~"), age(job.create_time(), job.end_time()),
                           job.has_end_time() ? age(job.end_time()) + " ago" : "-", why(job, pace)});
    table.add(std::move(row));
  }
  if (wide) return table.text();
  const std::optional<size_t> width = terminal_width();
  return width ? table.text_within(*width) : table.text(kLastColumn);
}

namespace {

constexpr absl::Duration kRecent = absl::Hours(24);
constexpr size_t kShownAtLeast = 10;

bool is_recent(const v1::Job& job, absl::Time now) {
  return !is_final(job.state()) || now - absl::FromUnixSeconds(job.end_time().seconds()) < kRecent;
}

// Removes jobs that ended long ago, unless few would be left. Returns how many it removed.
size_t hide_old(std::vector<v1::Job>& jobs) {
  const absl::Time now = absl::Now();
  std::vector<v1::Job> shown;
  for (v1::Job& job : jobs) {
    if (shown.size() < kShownAtLeast || is_recent(job, now)) shown.push_back(std::move(job));
  }
  const size_t hidden = jobs.size() - shown.size();
  jobs = std::move(shown);
  return hidden;
}

}  // namespace

int list(const Globals& globals, const ListOptions& options) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  auto jobs = find_jobs(client, options.query);
  if (!jobs.ok()) return report(jobs.status());
  if (globals.format != OutputFormat::kTable) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const v1::Job& job : *jobs) all.push_back(job_json(job));
    print(nlohmann::ordered_json{{"jobs", std::move(all)}}, globals.format);
    return kExitOk;
  }
  const bool some = options.query.is_choice() || !options.query.project.empty();
  if (jobs->empty()) {
    note(some ? "no such jobs" : "no jobs; `titanctl submit FILE` queues one");
    return kExitOk;
  }
  const size_t hidden = options.all || options.query.is_choice() ? 0 : hide_old(*jobs);
  print(list_text(*jobs, globals.wide));
  if (hidden > 0) note(absl::StrCat(counted(hidden, "job"), " that ended more than a day ago: --all shows them too"));
  return kExitOk;
}

}  // namespace titan::cli
