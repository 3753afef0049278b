#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/load.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// A job configuration as the command line names it.
struct Source {
  std::string file;    // Path, "-" for standard input, or empty: only overrides.
  std::string format;  // toml, yaml or json; empty: by the file's extension, or by the content of standard input.
  std::vector<std::string> overrides;  // "--training.steps", "10", ... in the form that load.h reads.
  std::optional<std::string> text;     // Result of read_source(), if it was called already.
  // Project of the job unless the configuration names one; empty: the configuration's.
  std::string project;
  bool may_be_empty = false;  // No file, or one without a key, gives the defaults; never set for a job.
  bool check_files = true;    // Also look at the tokenizer, dataset, checkpoint and dump folders.
};

struct Prepared {
  config::LoadedConfig loaded;  // Valid, resolved, with absolute paths.
  std::string text;             // The user's text, with overrides noted in a comment at the end.
};

// Returns the content of the file or of standard input. Errors: InvalidArgument.
absl::StatusOr<std::string> read_source(const Source& source);

// Reads, checks and resolves a configuration; needs no controller. Relative paths become absolute against the current
// folder. Warnings go to stderr. Errors: InvalidArgument with one line per problem.
absl::StatusOr<Prepared> prepare(const Source& source);

// Returns the spec for the controller: the configuration, its text, and what this machine sees of the dump folder.
v1::JobSpec to_spec(const Prepared& prepared);

// Returns the spec of a new job from an earlier one, with `overrides`; the id is not copied. Errors: those of
// prepare().
absl::StatusOr<v1::JobSpec> spec_for_resubmit(const v1::JobSpec& earlier, const std::vector<std::string>& overrides);

}  // namespace titan::cli
