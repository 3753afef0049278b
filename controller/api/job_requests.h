#pragma once

// Reads what CreateJob and UpdateJob ask for, and refuses what is wrong with it.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/load.h"
#include "controller/core/input.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

// A job that comes as text.

inline constexpr size_t kLongestConfig = 1 << 20;  // Bytes, of a configuration and of the text that it comes as.

struct ResolvedSource {
  v1::JobSpec spec;                   // The request's, with the text as its source and without the configuration.
  config::JobConfig config;           // Checked.
  std::vector<std::string> warnings;  // What `titanctl submit` would print.
};

// The configuration that the request's source says. Errors: InvalidArgument (CONFIG_INVALID, TEXT_TOO_LARGE,
// TWO_SOURCES) with a violation for everything that is wrong: its field is the key, or "source.text"; its description
// begins with file and line.
absl::StatusOr<ResolvedSource> resolve_source(const v1::CreateJobRequest& request);

// InvalidArgument (CONFIG_INVALID) with a violation for each problem; `field` where it names no key.
absl::Status config_refusal(const std::vector<config::Problem>& problems, const std::string& field);

// What an UpdateJob asks for, without the job's uid and the actor. Errors: InvalidArgument (UPDATE_MASK_INVALID,
// LABELS_INVALID, TITLE_INVALID, SPEC_INVALID).
absl::StatusOr<core::UpdateJob> read_update(const v1::UpdateJobRequest& request);

}  // namespace titan::api
