#pragma once

// Between wire messages and the controller's own types. Checks of what comes in stand here.

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/service/rpc/error.h"
#include "controller/job/diagnosis.h"
#include "controller/job/record.h"
#include "controller/reconcile/published.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/node.pb.h"

namespace titan::api {

// Of what is kept of a job and shown in lists, in bytes.
inline constexpr size_t kLongestTitle = 1024;
inline constexpr size_t kLongestPath = 4096;  // What Linux opens.

struct CheckedSpec {
  job::Spec spec;
  v1::JobSpec stored;  // What is kept: the configuration with every key present.
  config::JobConfig config;
  std::vector<std::string> warnings;  // Of its text.
};

// What a refusal says of a text that is longer than `most` bytes.
rpc::FieldViolation too_long(const std::string& field, size_t bytes, size_t most);

// The checks of `titanctl validate`, and those of the specification's other fields. `new_id` names a job that has no
// id. Errors: InvalidArgument with one field violation per problem.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, const std::function<std::string()>& new_id);
// Of a configuration that was read and checked already.
absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& spec, config::JobConfig config,
                                       const std::function<std::string()>& new_id);
// Likewise of a whole request: a job that comes as text is resolved first, and labels are checked.
absl::StatusOr<CheckedSpec> check_request(const v1::CreateJobRequest& request,
                                          const std::function<std::string()>& new_id);

// Without the configuration texts.
v1::Job to_proto(const reconcile::JobView& view);
v1::Node to_proto(const reconcile::NodeView& view);
void add_warnings(const std::vector<scheduler::Misfit>& misfits, v1::Job& job);
v1::Event to_proto(const job::EventRecord& event, int64_t revision);
v1::JobDiagnosis to_proto(const job::DiagnosisRecord& record);

// Accept a full name or an id alone.
std::string full_job_name(const std::string& name);
std::string node_id(const std::string& name);

// InvalidArgument (NAME_MISSING) for a request without the name of a "job" or "node".
absl::Status no_name(absl::string_view of);

// Of what a request creates.
uint32_t fingerprint(const v1::CreateJobRequest& request);

}  // namespace titan::api
