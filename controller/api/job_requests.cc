#include "controller/api/job_requests.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/raw.h"
#include "common/plan/config/validate.h"
#include "common/service/rpc/error.h"
#include "controller/api/convert.h"
#include "controller/api/job_spec.h"
#include "controller/core/labels.h"
#include "nlohmann/json.hpp"

namespace titan::api {
namespace {

config::ConfigFormat format_of(const v1::JobText& source) {
  switch (source.format()) {
    case v1::JobText::TOML:
      return config::ConfigFormat::kToml;
    case v1::JobText::YAML:
      return config::ConfigFormat::kYaml;
    case v1::JobText::JSON:
      return config::ConfigFormat::kJson;
    default:
      return config::guess_format(source.text());
  }
}

// Accepts each override with or without the dashes of a command line.
std::vector<std::string> overrides_of(const v1::JobText& source) {
  std::vector<std::string> words;
  for (const std::string& word : source.overrides()) {
    words.push_back(absl::StartsWith(word, "-") ? word : absl::StrCat("--", word));
  }
  return words;
}

// Reports relative paths: they mean nothing in the controller's working folder.
std::vector<config::Problem> relative_paths(config::LoadedConfig& loaded) {
  std::vector<config::Problem> problems;
  config::visit_paths(loaded.config, [&](const std::string& key, const std::string& path) {
    // Each node has its own default assets.
    if (config::means_assets(key, path) || absl::StartsWith(path, "/")) return;
    const auto origin = loaded.origins.find(key);
    problems.push_back({origin == loaded.origins.end() ? config::Origin{} : origin->second, key, path,
                        "must be an absolute path: the controller has another working folder", ""});
  });
  return problems;
}

absl::Status check_size(const v1::JobText& source) {
  size_t bytes = source.text().size();
  for (const std::string& word : source.overrides()) bytes += word.size();
  if (bytes <= kMaxConfigBytes) return absl::OkStatus();
  return rpc::bad_request("TEXT_TOO_LARGE",
                          {{"source.text", absl::StrCat("is ", bytes, " bytes long with its overrides, but at most ",
                                                        kMaxConfigBytes, " are allowed")}});
}

}  // namespace

absl::Status config_refusal(const std::vector<config::Problem>& problems, const std::string& field) {
  std::vector<rpc::FieldViolation> violations;
  for (const config::Problem& problem : problems) {
    violations.push_back({problem.key.empty() ? field : problem.key, config::format(problem)});
  }
  return rpc::bad_request("CONFIG_INVALID", violations, std::string(config::to_status(problems).message()));
}

absl::StatusOr<ResolvedSource> resolve_source(const v1::CreateJobRequest& request) {
  const v1::JobText& source = request.source();
  if (!request.spec().config_json().empty() || !request.spec().config_source().empty()) {
    return rpc::bad_request("TWO_SOURCES",
                            {{"source", "cannot be given together with spec.config_json or spec.config_source"}});
  }
  TITAN_RETURN_IF_ERROR(check_size(source));
  const std::string name = source.file_name().empty() ? "job" : config::printable(source.file_name());
  const std::vector<std::string> overrides = overrides_of(source);
  std::vector<config::Problem> problems;
  std::optional<config::LoadedConfig> loaded =
      config::load_job(source.text(), format_of(source), name, overrides, problems, /*reads_files=*/false);
  if (!loaded) return config_refusal(problems, "source.text");
  problems = config::check(loaded->config, loaded->origins);
  for (config::Problem& problem : relative_paths(*loaded)) problems.push_back(std::move(problem));
  if (!problems.empty()) return config_refusal(problems, "source.text");
  ResolvedSource resolved{request.spec(), std::move(loaded->config), std::move(loaded->warnings)};
  resolved.spec.set_config_source(config::source_text(source.text(), overrides));
  return resolved;
}

namespace {

constexpr int kMaxPriority = 1'000'000;  // The limit of scheduling.priority.

// AIP-134: without a mask all set fields are updated; "*" names everything that can be updated.
std::vector<std::string> paths_of(const v1::UpdateJobRequest& request) {
  std::vector<std::string> paths(request.update_mask().paths().begin(), request.update_mask().paths().end());
  const v1::Job& job = request.job();
  if (paths.empty()) {
    if (job.spec().priority() != 0) paths.push_back("spec.priority");
    if (!job.title().empty()) paths.push_back("title");
    if (!job.labels().empty()) paths.push_back("labels");
  }
  if (paths == std::vector<std::string>{"*"}) return {"spec.priority", "title", "labels"};
  return paths;
}

// AIP-161 writes keys with dots in backquotes.
std::string label_key(absl::string_view path) {
  absl::string_view key = absl::StripPrefix(path, "labels.");
  if (key.size() > 1 && key.front() == '`' && key.back() == '`') key = key.substr(1, key.size() - 2);
  return std::string(key);
}

}  // namespace

absl::StatusOr<core::UpdateJob> read_update(const v1::UpdateJobRequest& request) {
  const v1::Job& job = request.job();
  core::UpdateJob update;
  std::vector<rpc::FieldViolation> unknown;
  core::JobLabels labels;  // Labels that the request sets.
  for (const std::string& path : paths_of(request)) {
    if (path == "spec.priority") {
      update.priority = job.spec().priority();
    } else if (path == "title") {
      update.title = job.title();
    } else if (path == "labels") {
      labels.insert(job.labels().begin(), job.labels().end());
      update.all_labels = core::JobLabels(job.labels().begin(), job.labels().end());
    } else if (absl::StartsWith(path, "labels.")) {
      const std::string key = label_key(path);
      const auto value = job.labels().find(key);
      if (value != job.labels().end()) labels[key] = value->second;
      update.labels[key] = value != job.labels().end() ? std::optional<std::string>(value->second) : std::nullopt;
    } else {
      unknown.push_back({"update_mask", absl::StrCat("'", path,
                                                     "' cannot be updated; spec.priority, title, labels and "
                                                     "labels.KEY can")});
    }
  }
  if (!unknown.empty()) return rpc::bad_request("UPDATE_MASK_INVALID", unknown);
  TITAN_RETURN_IF_ERROR(core::check_labels(labels, "job.labels"));
  if (update.priority && (*update.priority < -kMaxPriority || *update.priority > kMaxPriority)) {
    return rpc::bad_request("SPEC_INVALID",
                            {{"job.spec.priority", absl::StrCat("is ", *update.priority, ", but must be between ",
                                                                -kMaxPriority, " and ", kMaxPriority)}});
  }
  if (update.title && update.title->size() > kMaxTitleBytes) {
    return rpc::bad_request("TITLE_INVALID", {too_long("job.title", update.title->size(), kMaxTitleBytes)});
  }
  update.etag = request.etag().empty() ? job.etag() : request.etag();
  return update;
}

}  // namespace titan::api
