#pragma once

// Converts the controller's own types to wire messages.

#include <string>

#include "absl/status/statusor.h"
#include "controller/job/diagnosis.h"
#include "controller/job/record.h"
#include "controller/reconcile/published.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/node.pb.h"

namespace titan::api {

// Leaves out the configuration texts.
v1::Job to_proto(const reconcile::JobView& view);
v1::Node to_proto(const reconcile::NodeView& view);
void add_warnings(const std::vector<scheduler::Misfit>& misfits, v1::Job& job);
v1::Event to_proto(const job::EventRecord& event, int64_t revision);
v1::JobDiagnosis to_proto(const job::DiagnosisRecord& record);

// Both accept a full name or an id. A job that is named by its id is in project "default".
std::string full_job_name(const std::string& name);
std::string node_id(const std::string& name);

// Returns InvalidArgument (NAME_MISSING), for a request that does not name a "job" or "node".
absl::Status name_missing_error(absl::string_view of);

}  // namespace titan::api
