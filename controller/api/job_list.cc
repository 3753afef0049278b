#include "controller/api/job_list.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/id.h"
#include "common/service/rpc/error.h"
#include "controller/api/convert.h"
#include "controller/api/filter.h"
#include "controller/api/job_fields.h"
#include "controller/api/paging.h"

namespace titan::api {
namespace {

using reconcile::JobViewPtr;

// Bytes after which a page ends early: clients accept messages of 64 MiB, and one job is far smaller than the rest of
// that.
constexpr size_t kPageBytes = 16 << 20;

// Returns at most `limit` wanted jobs that are older than `before` (0: any age), newest first.
std::vector<JobViewPtr> newest_first(const reconcile::Published& published, const Filter& wanted, int64_t before,
                                     size_t limit) {
  std::vector<JobViewPtr> all =
      published.list(before, std::numeric_limits<int>::max(), [](const auto&) { return true; });
  std::vector<JobViewPtr> found;
  for (JobViewPtr& view : all) {
    if (found.size() == limit) break;
    if (wanted(*view)) found.push_back(std::move(view));
  }
  return found;
}

std::vector<JobViewPtr> sorted(const reconcile::Published& published, const Filter& wanted, const OrderBy& order_by,
                               size_t limit) {
  std::vector<JobViewPtr> found = newest_first(published, wanted, 0, std::numeric_limits<size_t>::max());
  const size_t count = std::min(limit, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), found.end(),
                    [&](const JobViewPtr& a, const JobViewPtr& b) { return order_by.before(*a, *b); });
  found.resize(count);
  return found;
}

// Returns the request's arguments other than the page, as text; a token is valid only with the same ones.
std::string other_arguments(const v1::ListJobsRequest& request) {
  std::string out = absl::StrCat("jobs ", request.project());
  for (const int state : request.states()) absl::StrAppend(&out, " ", state);
  if (!request.filter().empty()) absl::StrAppend(&out, "\nfilter ", request.filter());
  if (!request.order_by().empty()) absl::StrAppend(&out, "\norder_by ", request.order_by());
  return out;
}

Filter wanted_by(const v1::ListJobsRequest& request, const auth::Caller& caller, Filter filter) {
  std::set<std::string> states;
  for (const int state : request.states()) states.insert(v1::Job::State_Name(static_cast<v1::Job::State>(state)));
  return
      [states = std::move(states), caller, project = request.project(), filter = std::move(filter)](const auto& view) {
        if (!caller.sees(view.record->spec.project)) return false;
        if (!project.empty() && view.record->spec.project != project) return false;
        if (!states.empty() && !states.contains(std::string(job::name(view.record->state)))) return false;
        return filter(view);
      };
}

}  // namespace

absl::Status list_jobs(const reconcile::Published& published, const v1::ListJobsRequest& request,
                       const auth::Caller& caller, absl::Time now, v1::ListJobsResponse& response) {
  for (int i = 0; i < request.states_size(); ++i) {
    if (request.states(i) != v1::Job::STATE_UNSPECIFIED) continue;
    return rpc::bad_request("ENUM_VALUE_UNKNOWN",
                            {{absl::StrCat("states[", i, "]"), "is STATE_UNSPECIFIED, which no job is in"}});
  }
  if (!request.project().empty() && !text::is_project_name(request.project())) {
    return rpc::bad_request("PROJECT_INVALID",
                            {{"project", absl::StrCat("is '", absl::CHexEscape(request.project().substr(0, 64)),
                                                      "', expected 1 to 63 letters, digits, '-', '_' or '.'")}});
  }
  const std::string bound_to = other_arguments(request);
  TITAN_ASSIGN_OR_RETURN(const PageRequest page, read_page(request.page_size(), request.page_token(), bound_to));
  TITAN_ASSIGN_OR_RETURN(Filter filter, parse_filter(request.filter(), now, caller.actor));
  Filter wanted = wanted_by(request, caller, std::move(filter));
  const auto limit = static_cast<size_t>(page.size) + 1;
  std::vector<JobViewPtr> views;
  std::function<std::string(const core::JobView&)> place_of;
  if (request.order_by().empty()) {
    int64_t before = 0;
    if (!page.after.empty() && !absl::SimpleAtoi(page.after, &before))
      return absl::InvalidArgumentError("bad page token");
    // Only cheap predicates run under the list's lock.
    views = request.filter().empty() ? published.list(before, static_cast<int>(limit), wanted)
                                     : newest_first(published, wanted, before, limit);
    place_of = [](const core::JobView& view) { return absl::StrCat(view.record->order); };
  } else {
    TITAN_ASSIGN_OR_RETURN(const OrderBy order_by, OrderBy::parse(request.order_by()));
    if (!page.after.empty()) {
      TITAN_ASSIGN_OR_RETURN(const Filter after, order_by.after(page.after));
      wanted = [wanted = std::move(wanted), after](const auto& view) { return wanted(view) && after(view); };
    }
    views = sorted(published, wanted, order_by, limit);
    place_of = [order_by](const core::JobView& view) { return order_by.place(view); };
  }
  size_t bytes = 0;
  for (const JobViewPtr& view : views) {
    const int taken = response.jobs_size();
    if (taken == page.size || bytes > kPageBytes) {
      response.set_next_page_token(write_token(place_of(*views[static_cast<size_t>(taken) - 1]), bound_to));
      break;
    }
    v1::Job& job = *response.add_jobs();
    job = to_proto(*view);
    bytes += job.ByteSizeLong();
  }
  return absl::OkStatus();
}

}  // namespace titan::api
