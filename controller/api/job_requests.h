#pragma once

// Reads and checks what CreateJob and UpdateJob request.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/load.h"
#include "controller/core/input.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// Limit in bytes for a configuration, and for the text that it comes as.
inline constexpr size_t kMaxConfigBytes = 1 << 20;

struct ResolvedSource {
  v1::JobSpec spec;                   // The request's spec, with the text as its source and without the configuration.
  config::JobConfig config;           // Already checked.
  std::vector<std::string> warnings;  // Warnings that `titanctl submit` would print.
};

// Resolves the configuration in the request's source. Errors: InvalidArgument (CONFIG_INVALID, TEXT_TOO_LARGE,
// TWO_SOURCES) with a violation for each problem: its field is the key, or "source.text"; its description begins with
// file and line.
absl::StatusOr<ResolvedSource> resolve_source(const v1::CreateJobRequest& request);

// Returns InvalidArgument (CONFIG_INVALID) with a violation for each problem; `field` is used for one without a key.
absl::Status config_refusal(const std::vector<config::Problem>& problems, const std::string& field);

// Reads an UpdateJob request; the caller sets the job's uid and the actor. Errors: InvalidArgument
// (UPDATE_MASK_INVALID, LABELS_INVALID, TITLE_INVALID, SPEC_INVALID).
absl::StatusOr<core::UpdateJob> read_update(const v1::UpdateJobRequest& request);

}  // namespace titan::api
