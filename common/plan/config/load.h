#pragma once

// Reads job configurations: TOML, YAML and JSON with one schema, older spellings, and command-line overrides.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

enum class Format { kToml, kYaml, kJson };

// Where a value came from: "configs/a.toml" line 12, or "command line" with line 0.
struct Origin {
  std::string file;
  int line = 0;
};

// One thing that is wrong. format() gives the line a user reads:
//   configs/a.toml:12: training.seq_length = 2048: unknown key; did you mean training.seq_len?
struct Problem {
  Origin origin;           // file is empty when the key has its default value.
  std::string key;         // "training.seq_length"; empty for syntax errors of a whole file.
  std::string value;       // As the user wrote it.
  std::string message;     // What is wrong.
  std::string suggestion;  // Nearest valid key or allowed values; may be empty.
};
std::string format(const Problem& problem);
// InvalidArgument with one line per problem, or OK when there is none.
absl::Status to_status(const std::vector<Problem>& problems);

struct Loaded {
  JobConfig config;
  std::vector<std::string> warnings;      // Older spellings and keys without a meaning here, one each.
  std::map<std::string, Origin> origins;  // Of every canonical key that a file or the command line set.
  bool file_sets_keys = false;            // Any, before the command line.
};

// Overrides are command-line words in their order: "--training.steps", "10", "--training.seq_len=128",
// "--checkpoint.enable",
// "--metrics.no_enable_tensorboard", "--model.converters", "a,b", "--nproc", "4" (resources.ranks), "--nodes", "2"
// (ranks_per_node). They win over the file, which wins over the defaults. Errors: InvalidArgument listing all problems
// of the file and the overrides; NotFound and others when the file cannot be read.
absl::StatusOr<Loaded> load_file(const std::string& path, const std::vector<std::string>& overrides = {});
// `name` stands for the file in messages.
absl::StatusOr<Loaded> load_text(std::string_view text, Format format, const std::string& name,
                                 const std::vector<std::string>& overrides = {});
// Likewise, with what is wrong as a list: nothing is returned when it is not empty.
std::optional<Loaded> load_text(std::string_view text, Format format, const std::string& name,
                                const std::vector<std::string>& overrides, std::vector<Problem>& problems);
// Only defaults and overrides.
absl::StatusOr<Loaded> load_overrides(const std::vector<std::string>& overrides);

// The format that a file name's ending tells (.toml, .yaml, .yml, .json). Errors: InvalidArgument.
absl::StatusOr<Format> format_of(std::string_view path);
// For text without a name, such as standard input: JSON when it starts with "{", else TOML when it parses as such, else
// YAML.
Format guess_format(std::string_view text);

// The rest is for titanctl and the controller, which take a job as its author wrote it.

// Like load_text(), but refuses a job that sets no key: it comes from a generator that failed or a variable that was
// not set.
std::optional<Loaded> load_job(std::string_view text, Format format, const std::string& name,
                               const std::vector<std::string>& overrides, std::vector<Problem>& problems);

// Visits every path that is set and belongs to the job's author: a relative one is below their working folder.
void visit_paths(JobConfig& config, const std::function<void(const std::string& key, std::string& path)>& visit);

// What a job keeps as its source: the text with the overrides in a comment.
std::string source_text(std::string text, const std::vector<std::string>& overrides);

}  // namespace titan::config
