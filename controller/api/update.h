#pragma once

#include "absl/status/statusor.h"
#include "controller/core/input.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// What an UpdateJob asks for, without the job's uid and the actor. Errors: InvalidArgument (UPDATE_MASK_INVALID,
// LABELS_INVALID, TITLE_INVALID, SPEC_INVALID).
absl::StatusOr<core::UpdateJob> read_update(const v1::UpdateJobRequest& request);

}  // namespace titan::api
