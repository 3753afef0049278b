#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text/quantities.h"
#include "controller/cli/client.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_json.h"
#include "controller/cli/job_query.h"
#include "controller/cli/list_text.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kRecent = absl::Hours(24);
constexpr size_t kShownAtLeast = 10;

bool is_recent(const v1::Job& job, absl::Time now) {
  return !is_final(job.state()) || now - absl::FromUnixSeconds(job.end_time().seconds()) < kRecent;
}

// Takes away what was over long ago, unless little would be left. Gives how many.
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
  Client client(globals.controller, globals.timeout, globals.access);
  auto jobs = find_jobs(client, options.query);
  if (!jobs.ok()) return report(jobs.status());
  if (globals.format != Format::kTable) {
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
