#include "controller/cli/job_source.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/home.h"
#include "common/io/storage/folder_id.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/validate.h"
#include "controller/cli/preflight.h"
#include "controller/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kJobId[] = "--scheduling.job_id";

absl::StatusOr<config::ConfigFormat> named_format(const std::string& name) {
  if (name == "toml") return config::ConfigFormat::kToml;
  if (name == "yaml") return config::ConfigFormat::kYaml;
  if (name == "json") return config::ConfigFormat::kJson;
  return absl::InvalidArgumentError("--format is '" + name + "': it must be toml, yaml or json");
}

// A missing or unreadable configuration is a usage error, whatever the system's error is.
absl::StatusOr<std::string> read_all(const std::string& file) {
  if (file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::error_code error;
  if (fs::is_directory(file, error))
    return absl::InvalidArgumentError(file + ": is a folder, not a configuration file");
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", file, ": ", errno_status(errno, "").message().substr(2), nearby_path(file)));
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string source_name(const Source& source) { return source.file == "-" ? "standard input" : source.file; }

absl::StatusOr<config::ConfigFormat> format_of(const Source& source, const std::string& text) {
  if (!source.format.empty()) return named_format(source.format);
  return source.file == "-" ? config::guess_format(text) : config::format_of(source.file);
}

absl::StatusOr<config::LoadedConfig> load(const Source& source, const std::string& text) {
  if (source.file.empty() && source.may_be_empty) return config::load_overrides(source.overrides);
  if (source.file.empty()) {
    TITAN_RETURN_IF_ERROR(config::load_overrides(source.overrides).status());
    return absl::InvalidArgumentError(
        "a configuration file is required: FILE.toml, .yaml or .json, or - for standard input");
  }
  const std::string name = source_name(source);
  TITAN_ASSIGN_OR_RETURN(const config::ConfigFormat format, format_of(source, text));
  if (source.may_be_empty) return config::load_text(text, format, name, source.overrides);
  std::vector<config::Problem> problems;
  std::optional<config::LoadedConfig> loaded = config::load_job(text, format, name, source.overrides, problems);
  if (!loaded) return config::to_status(problems);
  return *std::move(loaded);
}

void make_paths_absolute(config::JobConfig& config) {
  if (config::kind_of(config.model) == config::ModelKind::kTextToImage) config::find_downloads(config.encoder);
  config::visit_paths(config, [](const std::string& key, std::string& path) {
    std::error_code error;
    if (config::means_assets(key, path) && !fs::exists(path, error)) return;
    path = fs::absolute(text::expand_home(path)).lexically_normal().string();
  });
}

// Warns of paths with a variable, which are seldom intended unless they exist.
void warn_of_variables(config::JobConfig& config) {
  config::visit_paths(config, [](const std::string& key, const std::string& path) {
    std::error_code error;
    if (!text::names_variable(path) || fs::exists(path, error)) return;
    warn(absl::StrCat(key, " = ", path, ": ", text::kNoVariables,
                      ", so this is a path with a dollar sign; write the folder itself, or ~ for your home"));
  });
}

}  // namespace

absl::StatusOr<std::string> read_source(const Source& source) {
  if (source.text) return *source.text;
  return source.file.empty() ? "" : read_all(source.file);
}

absl::StatusOr<Prepared> prepare(const Source& source) {
  Prepared prepared;
  TITAN_ASSIGN_OR_RETURN(prepared.text, read_source(source));
  TITAN_ASSIGN_OR_RETURN(prepared.loaded, load(source, prepared.text));
  if (!source.project.empty() && !prepared.loaded.origins.contains("scheduling.project"))
    prepared.loaded.config.scheduling.project = source.project;
  for (const std::string& warning : prepared.loaded.warnings) warn(warning);
  TITAN_RETURN_IF_ERROR(config::validate(prepared.loaded));
  make_paths_absolute(prepared.loaded.config);
  warn_of_variables(prepared.loaded.config);
  if (source.check_files) {
    std::vector<std::string> warnings;
    TITAN_RETURN_IF_ERROR(config::to_status(check_files(prepared.loaded, warnings)));
    for (const std::string& warning : warnings) warn(warning);
    const config::JobConfig& config = prepared.loaded.config;
    if (config::uses_assets_tokenizer(config)) {
      for (const std::string& note : tokenizer_files::not_applied(config.model.hf_assets_path)) warn(note);
    }
  }
  config::resolve(prepared.loaded.config);
  prepared.text = config::source_text(std::move(prepared.text), source.overrides);
  return prepared;
}

absl::StatusOr<v1::JobSpec> spec_for_resubmit(const v1::JobSpec& earlier, const std::vector<std::string>& overrides) {
  Prepared prepared{.text = earlier.config_source()};
  TITAN_ASSIGN_OR_RETURN(prepared.loaded, config::load_text(earlier.config_json(), config::ConfigFormat::kJson,
                                                            "the earlier job", overrides));
  config::JobConfig& config = prepared.loaded.config;
  if (std::find(overrides.begin(), overrides.end(), kJobId) == overrides.end()) config.scheduling.job_id.clear();
  TITAN_RETURN_IF_ERROR(config::validate(prepared.loaded));
  make_paths_absolute(config);
  config::resolve(config);
  prepared.text = config::source_text(std::move(prepared.text), overrides);
  return to_spec(prepared);
}

v1::JobSpec to_spec(const Prepared& prepared) {
  const config::JobConfig& config = prepared.loaded.config;
  v1::JobSpec spec;
  spec.set_config_json(config::to_json_text(config));
  spec.set_config_source(prepared.text);
  // The job keeps the folder's name as the user gave it, since nodes may see other mounts. These two only help the
  // controller to find another live job in the same folder.
  std::error_code error;
  const fs::path real = fs::weakly_canonical(config.job.dump_folder, error);
  if (!error) spec.set_real_folder(real.string());
  spec.set_folder_id(storage::read_folder_id(storage::posix_files(), config.job.dump_folder).value_or(""));
  return spec;
}

}  // namespace titan::cli
