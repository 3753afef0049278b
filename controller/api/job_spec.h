#pragma once

// A job's specification is its resolved configuration. What the controller needs of it is derived here, once, when the
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

// Of what is kept of a job and shown in lists, in bytes.
inline constexpr size_t kLongestTitle = 1024;
inline constexpr size_t kLongestPath = 4096;  // What Linux opens.

// What scheduling needs of a resolved configuration; without what the client saw of the dump folder.
job::Spec spec_of(const config::JobConfig& config);

struct CheckedSpec {
  job::Spec spec;      // spec_of(config), with an id where it has none, and the sent real_folder and folder_id.
  v1::JobSpec stored;  // What is kept: the configuration with every key present, and the text that it came as.
  config::JobConfig config;
  std::vector<std::string> warnings;  // Of its text.
};

// What a refusal says of a text that is longer than `most` bytes.
rpc::FieldViolation too_long(const std::string& field, size_t bytes, size_t most);

// The checks of `titanctl validate`, and those of the specification's other fields: one that is set must say what the
// configuration says. `new_id` names a job that has no id. Errors: InvalidArgument with one field violation per
// problem.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, const std::function<std::string()>& new_id);
// Of a configuration that was read and checked already.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, config::JobConfig config,
                                       const std::function<std::string()>& new_id);
// Likewise of a whole request: a job that comes as text is resolved first, and labels are checked.
absl::StatusOr<CheckedSpec> check_request(const v1::CreateJobRequest& request,
                                          const std::function<std::string()>& new_id);

// Of what a request creates.
uint32_t fingerprint(const v1::CreateJobRequest& request);

}  // namespace titan::api
