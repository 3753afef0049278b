#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controller/auth/caller.h"
#include "controller/reconcile/published.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// Adds one page of the jobs that a request selects and the caller may see. A page ends early once its jobs take 16 MiB.
// Each page shows the jobs at that moment: a job whose place changes between pages may appear twice or never. Errors:
// InvalidArgument (BAD_PAGE_SIZE, BAD_PAGE_TOKEN, ENUM_VALUE_UNKNOWN, FILTER_INVALID, ORDER_BY_INVALID,
// PROJECT_INVALID).
absl::Status list_jobs(const reconcile::Published& published, const v1::ListJobsRequest& request,
                       const auth::Caller& caller, absl::Time now, v1::ListJobsResponse& response);

}  // namespace titan::api
