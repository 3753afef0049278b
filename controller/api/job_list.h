#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controller/auth/caller.h"
#include "controller/reconcile/published.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// One page of the jobs that a request asks for, of those that the caller sees: with fewer than asked for when these
// take 16 MiB. Pages are of the jobs as they are then:
// one whose place in the order changes in between may come twice or not at all. Errors: InvalidArgument (BAD_PAGE_SIZE,
// BAD_PAGE_TOKEN, FILTER_INVALID, ORDER_BY_INVALID).
absl::Status list_jobs(const reconcile::Published& published, const v1::ListJobsRequest& request,
                       const auth::Caller& caller, absl::Time now, v1::ListJobsResponse& response);

}  // namespace titan::api
