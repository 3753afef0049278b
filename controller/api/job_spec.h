#pragma once

// A job's specification is its resolved configuration. What the controller needs from it is derived here once, when the
// request is checked.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/service/rpc/error.h"
#include "controller/job/record.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// Limits in bytes for what is kept of a job and shown in lists.
inline constexpr size_t kMaxTitleBytes = 1024;
inline constexpr size_t kMaxPathBytes = 4096;  // Linux's own limit.

// Derives what scheduling needs from a resolved configuration. Leaves real_folder and folder_id empty: only the client
// knows them.
job::SchedulingSpec spec_of(const config::JobConfig& config);

struct CheckedSpec {
  job::SchedulingSpec spec;  // spec_of(config), with an id if it had none, and the sent real_folder and folder_id.
  v1::JobSpec stored;        // Stored form: the configuration with every key present, and the text that it came as.
  config::JobConfig config;
  std::vector<std::string> warnings;  // Warnings about its text.
};

// Returns the violation for a text of `bytes` bytes where at most `most` are kept.
rpc::FieldViolation too_long(const std::string& field, size_t bytes, size_t most);

// Runs the checks of `titanctl validate`, and checks the specification's other fields: one that is set must equal the
// configuration's value. `new_id` names a job that has no id. Errors: InvalidArgument with one field violation per
// problem.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, const std::function<std::string()>& new_id);
// The same for a configuration that was read and checked already.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, config::JobConfig config,
                                       const std::function<std::string()>& new_id);
// The same for a whole request: resolves a job that comes as text, and checks labels.
absl::StatusOr<CheckedSpec> check_request(const v1::CreateJobRequest& request,
                                          const std::function<std::string()>& new_id);

// Returns a hash of what a request creates; the same request gives the same hash.
uint32_t fingerprint(const v1::CreateJobRequest& request);

}  // namespace titan::api
