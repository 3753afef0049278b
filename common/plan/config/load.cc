#include "common/plan/config/load.h"

#include <cerrno>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/hub/names.h"
#include "common/io/s3/location.h"
#include "common/plan/config/apply_settings.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/normalize_spelling.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/raw.h"
#include "common/plan/config/support.h"
#include "common/plan/config/trained_model.h"

namespace titan::config {
namespace {

RawValue read(std::string_view text, ConfigFormat format, const std::string& name, std::vector<Problem>& problems) {
  if (text.size() > kMaxFileBytes) {
    problems.push_back(
        {{name, 0}, "", "", absl::StrCat("larger than ", kMaxFileBytes, " bytes: not a configuration"), ""});
    return {};
  }
  switch (format) {
    case ConfigFormat::kToml:
      return read_toml(text, name, problems);
    case ConfigFormat::kYaml:
      return read_yaml(text, name, problems);
    case ConfigFormat::kJson:
      return read_json(text, name, problems);
  }
  return {};
}

absl::StatusOr<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return errno_status(errno, absl::StrCat("open ", path));
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMaxFileBytes) break;  // The reader rejects it.
  }
  if (in.bad()) return errno_status(EIO, absl::StrCat("read ", path));
  return text;
}

std::optional<LoadedConfig> build(const RawValue& file, const std::string& name, const std::vector<std::string>& words,
                                  std::vector<Problem>& problems, bool reads_files = true) {
  Applier applier;
  if (problems.empty()) applier.apply(flatten(file, name), Applier::Repeats::kAreErrors);
  const bool file_sets_keys = applier.sets_keys();
  Overrides overrides = parse_overrides(words, applier.catalog(), applier.problems());
  applier.apply(overrides.settings, Applier::Repeats::kLastWins);
  if (overrides.nodes) {
    applier.apply_nodes(*overrides.nodes);
  } else if (overrides.nproc) {
    applier.clear_placement();
  }
  applier.check_sharding();
  problems.insert(problems.end(), applier.problems().begin(), applier.problems().end());
  LoadedConfig loaded = applier.take();
  loaded.file_sets_keys = file_sets_keys;
  normalize_model_names(loaded);
  if (problems.empty()) read_config_flavor(loaded, reads_files, problems);
  Checker names(loaded.config, loaded.origins);  // Wrong dataset names are reported together with misspelt keys.
  check_dataset_names(names);
  problems.insert(problems.end(), names.problems().begin(), names.problems().end());
  if (!problems.empty()) return std::nullopt;
  const std::vector<std::string> support = support_warnings(loaded.config, loaded.origins);
  loaded.warnings.insert(loaded.warnings.end(), support.begin(), support.end());
  const std::vector<std::string> pipeline = pipeline_warnings(loaded.config);
  loaded.warnings.insert(loaded.warnings.end(), pipeline.begin(), pipeline.end());
  const std::vector<std::string> images = image_warnings(loaded.config);
  loaded.warnings.insert(loaded.warnings.end(), images.begin(), images.end());
  const std::vector<std::string> shards = shard_warnings(loaded.config);
  loaded.warnings.insert(loaded.warnings.end(), shards.begin(), shards.end());
  if (const auto spec = resolve_model(loaded.config.model); spec.ok()) {
    const std::vector<std::string> length = length_warnings(loaded.config, *spec);
    loaded.warnings.insert(loaded.warnings.end(), length.begin(), length.end());
  }
  return loaded;
}

}  // namespace

std::string format(const Problem& problem) {
  std::string line = problem.origin.file;
  if (problem.origin.line > 0) absl::StrAppend(&line, ":", problem.origin.line);
  if (!line.empty()) line += ": ";
  std::string what = problem.key;
  if (!problem.value.empty()) absl::StrAppend(&what, what.empty() ? "" : " = ", problem.value);
  if (!what.empty()) absl::StrAppend(&line, what, ": ");
  absl::StrAppend(&line, problem.message, problem.suggestion.empty() ? "" : "; ", problem.suggestion);
  return line;
}

absl::Status to_status(const std::vector<Problem>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrJoin(problems, "\n", [](std::string* out, const Problem& problem) { out->append(format(problem)); }));
}

absl::StatusOr<LoadedConfig> load_text(std::string_view text, ConfigFormat format, const std::string& name,
                                       const std::vector<std::string>& overrides) {
  std::vector<Problem> problems;
  std::optional<LoadedConfig> loaded = load_text(text, format, name, overrides, problems);
  if (!loaded) return to_status(problems);
  return *std::move(loaded);
}

std::optional<LoadedConfig> load_text(std::string_view text, ConfigFormat format, const std::string& name,
                                      const std::vector<std::string>& overrides, std::vector<Problem>& problems) {
  const RawValue raw = read(text, format, name, problems);
  std::optional<LoadedConfig> loaded = build(raw, name, overrides, problems);
  make_printable(problems);
  return loaded;
}

absl::StatusOr<LoadedConfig> load_file(const std::string& path, const std::vector<std::string>& overrides) {
  TITAN_ASSIGN_OR_RETURN(const ConfigFormat format, format_of(path));
  TITAN_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  TITAN_ASSIGN_OR_RETURN(LoadedConfig loaded, load_text(text, format, path, overrides));
  loaded.config.job.config_file = path;
  return loaded;
}

absl::StatusOr<LoadedConfig> load_overrides(const std::vector<std::string>& overrides) {
  RawValue empty;
  empty.kind = RawValue::Kind::kTable;
  std::vector<Problem> problems;
  std::optional<LoadedConfig> loaded = build(empty, "", overrides, problems);
  make_printable(problems);
  if (!loaded) return to_status(problems);
  return *std::move(loaded);
}

absl::StatusOr<ConfigFormat> format_of(std::string_view path) {
  const std::string name(path);
  if (absl::EndsWith(name, ".toml")) return ConfigFormat::kToml;
  if (absl::EndsWith(name, ".yaml") || absl::EndsWith(name, ".yml")) return ConfigFormat::kYaml;
  if (absl::EndsWith(name, ".json")) return ConfigFormat::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": unknown kind of configuration file; the name must end with .toml, .yaml, .yml or .json"));
}

ConfigFormat guess_format(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start != text.npos && text[start] == '{') return ConfigFormat::kJson;
  std::vector<Problem> problems;
  if (text.size() <= kMaxFileBytes) read_toml(text, "", problems);
  if (problems.empty()) return ConfigFormat::kToml;
  problems.clear();
  const RawValue yaml = text.size() <= kMaxFileBytes ? read_yaml(text, "", problems) : RawValue();
  // For a broken TOML file, TOML's errors are more helpful than YAML's.
  return problems.empty() && yaml.kind == RawValue::Kind::kTable ? ConfigFormat::kYaml : ConfigFormat::kToml;
}

std::optional<LoadedConfig> load_job(std::string_view text, ConfigFormat format, const std::string& name,
                                     const std::vector<std::string>& overrides, std::vector<Problem>& problems,
                                     bool reads_files) {
  const RawValue raw = read(text, format, name, problems);
  std::optional<LoadedConfig> loaded = build(raw, name, overrides, problems, reads_files);
  make_printable(problems);
  if (!loaded || loaded->file_sets_keys) return loaded;
  problems.push_back({{name, 0},
                      "",
                      "",
                      "sets no key; even a job with only default values must set one, such as job.description",
                      ""});
  return std::nullopt;
}

void visit_paths(JobConfig& config, const std::function<void(const std::string& key, std::string& path)>& visit) {
  const auto optional = [&visit](const char* key, std::optional<std::string>& path) {
    const bool elsewhere = path.has_value() && (hub::is_hub_path(*path) || s3::is_location(*path));
    if (path.has_value() && !path->empty() && !elsewhere) visit(key, *path);
  };
  const auto required = [&visit](const char* key, std::string& path) {
    if (!path.empty()) visit(key, path);
  };
  visit("job.dump_folder", config.job.dump_folder);
  required("model.hf_assets_path", config.model.hf_assets_path);
  optional("training.dataset_path", config.training.dataset_path);
  optional("validation.dataset_path", config.validation.dataset_path);
  for (DataSource& source : config.training.dataloader.sources) {
    optional("training.dataloader.sources", source.dataset_path);
  }
  for (DataSource& source : config.validation.dataloader.sources) {
    optional("validation.dataloader.sources", source.dataset_path);
  }
  optional("checkpoint.initial_load_path", config.checkpoint.initial_load_path);
  optional("checkpoint.initial_load_vision_path", config.checkpoint.initial_load_vision_path);
  required("parallelism.pipeline_parallel_schedule_csv", config.parallelism.pipeline_parallel_schedule_csv);
  required("experimental.custom_import", config.experimental.custom_import);
  if (kind_of(config.model) != ModelKind::kTextToImage) return;
  const auto encoder = [&](const char* key, std::string& path) {
    if (!is_repository_name(path)) required(key, path);
  };
  encoder("encoder.t5_encoder", config.encoder.t5_encoder);
  encoder("encoder.clip_encoder", config.encoder.clip_encoder);
  if (!names_autoencoder_repository(config.encoder.autoencoder_path))
    required("encoder.autoencoder_path", config.encoder.autoencoder_path);
  // The default is a file of a torchtitan checkout, which a training does not need.
  if (config.inference.prompts_path != InferenceSection{}.prompts_path)
    required("inference.prompts_path", config.inference.prompts_path);
}

std::string source_text(std::string text, const std::vector<std::string>& overrides) {
  if (!overrides.empty()) absl::StrAppend(&text, "\n# command line: ", absl::StrJoin(overrides, " "), "\n");
  return text;
}

}  // namespace titan::config
