#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/load.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// What names a job configuration on the command line.
struct Source {
  std::string file;    // Path, "-" for standard input, or empty: only overrides.
  std::string format;  // toml, yaml or json; empty: by the file's ending, for standard input by its looks.
  std::vector<std::string> overrides;  // "--training.steps", "10", ... as load.h takes them.
  std::optional<std::string> text;     // What read_source() gave, where that has been asked already.
  std::string project;                 // Where the job goes unless the configuration says so; empty: as it does.
  bool may_be_empty = false;           // No file or one without a key gives the defaults; a job is never that.
  bool check_files = true;             // Look at the tokenizer, data set, checkpoint and dump folders as well.
};

struct Prepared {
  config::Loaded loaded;  // Valid, resolved, with absolute paths.
  std::string text;       // As the user wrote it, overrides noted in a comment at the end.
};

// What the file, or standard input, holds. Errors: InvalidArgument.
absl::StatusOr<std::string> read_source(const Source& source);

// Reads, checks and resolves a configuration; needs no controller. Relative paths become absolute against the current
// folder. Warnings go to stderr. Errors: InvalidArgument with one line per problem.
absl::StatusOr<Prepared> prepare(const Source& source);

// What a controller is sent: the configuration, its text, and what this machine sees of the dump folder.
v1::JobSpec to_spec(const Prepared& prepared);

// The spec of an earlier job for a new one, with `overrides`; its id is not taken over. Errors: those of prepare().
absl::StatusOr<v1::JobSpec> respec(const v1::JobSpec& earlier, const std::vector<std::string>& overrides);

}  // namespace titan::cli
