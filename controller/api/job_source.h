#pragma once

// A job that comes as text.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/load.h"
#include "titan/v1/job.pb.h"

namespace titan::api {

inline constexpr size_t kMaxSourceBytes = 1 << 20;

// Puts the configuration that the request's source says into its spec, as titanctl would have sent it. `warnings`: what
// `titanctl submit` would print. Errors: InvalidArgument (CONFIG_INVALID, TEXT_TOO_LARGE, TWO_SOURCES) with a violation
// for everything that is wrong: its field is the key, or "source.text"; its description begins with file and line.
absl::StatusOr<v1::JobSpec> resolve_source(const v1::CreateJobRequest& request, std::vector<std::string>& warnings);

// InvalidArgument (CONFIG_INVALID) with a violation for each problem; `field` where it names no key.
absl::Status config_refusal(const std::vector<config::Problem>& problems, const std::string& field);

}  // namespace titan::api
