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

enum class ConfigFormat { kToml, kYaml, kJson };

// Source of a value: "configs/a.toml" line 12, or "command line" with line 0.
struct Origin {
  std::string file;
  int line = 0;
};

// One problem. format() makes the line that a user reads:
//   configs/a.toml:12: training.seq_length = 2048: unknown key; did you mean training.seq_len?
struct Problem {
  Origin origin;           // `file` is empty when the key has its default value.
  std::string key;         // "training.seq_length"; empty for a syntax error of the file.
  std::string value;       // Value as the user wrote it.
  std::string message;     // Description of the error.
  std::string suggestion;  // Nearest valid key or allowed values; may be empty.
};
std::string format(const Problem& problem);
// Returns InvalidArgument with one line per problem, or OK without problems.
absl::Status to_status(const std::vector<Problem>& problems);

struct LoadedConfig {
  JobConfig config;
  std::vector<std::string> warnings;      // About older spellings, keys without effect and inefficient settings.
  std::map<std::string, Origin> origins;  // Source of every current key that a file or the command line set.
  bool file_sets_keys = false;            // Whether the file sets any key, without the command line.
};

// `overrides` are command-line words in their order: "--training.steps", "10", "--training.seq_len=128",
// "--checkpoint.enable", "--metrics.no_enable_tensorboard", "--model.converters", "a,b", "--nproc", "4"
// (resources.ranks), "--nodes", "2" (ranks_per_node). They override the file, which overrides the defaults. Errors:
// InvalidArgument listing all problems of the file and the overrides; NotFound and others when the file cannot be read.
absl::StatusOr<LoadedConfig> load_file(const std::string& path, const std::vector<std::string>& overrides = {});
// Like load_file(); `name` stands for the file in messages.
absl::StatusOr<LoadedConfig> load_text(std::string_view text, ConfigFormat format, const std::string& name,
                                       const std::vector<std::string>& overrides = {});
// Like the above, but appends problems to a list and then returns nothing.
std::optional<LoadedConfig> load_text(std::string_view text, ConfigFormat format, const std::string& name,
                                      const std::vector<std::string>& overrides, std::vector<Problem>& problems);
// Applies the overrides to the defaults.
absl::StatusOr<LoadedConfig> load_overrides(const std::vector<std::string>& overrides);

// Returns the format of a file name's extension (.toml, .yaml, .yml, .json). Errors: InvalidArgument.
absl::StatusOr<ConfigFormat> format_of(std::string_view path);
// Guesses the format of text without a name, such as standard input: JSON if it starts with "{", else TOML if it parses
// as TOML or not as a YAML mapping, else YAML.
ConfigFormat guess_format(std::string_view text);

// The rest is for titanctl and the controller, which read a job as its author wrote it.

// Like load_text(), but rejects a job that sets no key: the usual cause is a failed generator or an unset variable.
// `reads_files` false: refuses a job whose model is in a config.json, because its path is not one of this machine.
std::optional<LoadedConfig> load_job(std::string_view text, ConfigFormat format, const std::string& name,
                                     const std::vector<std::string>& overrides, std::vector<Problem>& problems,
                                     bool reads_files = true);

// Visits every non-empty local path that the model uses, not those of a hub or an object store. A relative one is
// relative to the working folder of the job's author.
void visit_paths(JobConfig& config, const std::function<void(const std::string& key, std::string& path)>& visit);

// Returns the text that a job stores as its source, with the overrides in a comment at its end.
std::string source_text(std::string text, const std::vector<std::string>& overrides);

}  // namespace titan::config
