#pragma once

// Writes the configuration as JSON, as TOML, as a JSON schema and as help text, and reads the JSON back.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// Returns the configuration as JSON with every key; values that are not set are null.
nlohmann::json to_json(const JobConfig& config);
// Returns to_json(config).dump() without keys of [model.override] that are not set, several times faster.
std::string to_json_text(const JobConfig& config);

// Reads the JSON of to_json(). Missing members keep their defaults, so a job stored by an older version still loads.
// Errors: InvalidArgument listing every unknown member and every value of the wrong type or outside its allowed values.
absl::StatusOr<JobConfig> from_json(const nlohmann::json& json);

// Returns TOML that load_text() reads back to an equal configuration. `only_changed` omits defaults.
std::string to_toml(const JobConfig& config, bool only_changed = false);

// Returns a JSON Schema (draft 2020-12) of the current keys, for editors.
nlohmann::json json_schema();

// Returns the names of all sections in file order: "job", ..., "training", "training.dataloader", ...
std::vector<std::string> section_names();

// Returns help for one section ("training") with its nested ones, or for all sections when `section` is empty.
std::string help(std::string_view section = "");

// Carries out job.print_config and job.save_config_file: prints the resolved configuration as JSON on standard output,
// and writes it to that file under job.dump_folder. One rank calls it when training starts. Errors: those of writing
// the file.
absl::Status report(const JobConfig& config);

}  // namespace titan::config
