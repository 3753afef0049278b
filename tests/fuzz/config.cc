// Job configurations as people write them and as clients send them.

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/text/utf8.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/raw.h"
#include "common/plan/config/validate.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

// Checks that problems can be shown in terminals, logs and JSON.
void require_printable(const std::vector<config::Problem>& problems) {
  for (const config::Problem& problem : problems) {
    const std::string line = config::format(problem);
    require(text::is_utf8(line), "a configuration problem is reported in UTF-8");
    for (const char c : line)
      require(c == '\n' || static_cast<unsigned char>(c) >= ' ', "and without control characters");
  }
}

// Checks that a configuration that was read is the same after writing and reading it.
void require_same_again(const config::JobConfig& config) {
  const std::string text = config::to_json_text(config);
  const auto whole = config::from_json(config::to_json(config));
  require(whole.ok() && config::to_json_text(*whole) == text, "both writers of JSON agree");
  const auto from_json = config::from_json(nlohmann::json::parse(text));
  require(from_json.ok(), "an accepted configuration is accepted as JSON");
  require(config::to_json_text(*from_json) == text, "JSON reads back to the same configuration");
  const auto from_toml = config::load_text(config::to_toml(config), config::ConfigFormat::kToml, "again");
  require(from_toml.ok(), "an accepted configuration is accepted as TOML");
  require(config::to_json_text(from_toml->config) == text, "TOML reads back to the same configuration");
}

void take(config::JobConfig config) {
  require_same_again(config);
  const std::vector<config::Problem> problems = config::check(config);
  require_printable(problems);
  if (!problems.empty()) return;
  config::resolve(config);
  (void)config::processes(config);
  (void)config::batch_degree(config);
  (void)config::accumulation_steps(config);
  require_same_again(config);
}

void load(std::string_view text, config::ConfigFormat format, const std::vector<std::string>& overrides = {}) {
  std::vector<config::Problem> problems;
  const auto loaded = config::load_job(text, format, "job", overrides, problems);
  require(loaded.has_value() == problems.empty(), "a configuration is accepted, or a problem is reported");
  require_printable(problems);
  if (loaded) take(loaded->config);
}

}  // namespace

TITAN_FUZZ(config_toml, 600) { load(bytes, config::ConfigFormat::kToml); }
TITAN_FUZZ(config_yaml, 600) { load(bytes, config::ConfigFormat::kYaml); }
TITAN_FUZZ(config_json, 600) { load(bytes, config::ConfigFormat::kJson); }

// The input is a text without a file name; its first line has words of the command line.
TITAN_FUZZ(config_overrides, 300) {
  const size_t line = bytes.find('\n');
  const std::vector<std::string> words = absl::StrSplit(std::string(bytes.substr(0, line)), ' ', absl::SkipEmpty());
  const std::string_view text = line == bytes.npos ? "" : bytes.substr(line + 1);
  load(text, config::guess_format(text), words);
}

// Reads JSON as in JobSpec.config_json and in the controller's store.
TITAN_FUZZ(config_wire, 600) {
  const nlohmann::json json = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  const auto config = config::from_json(json);
  if (config.ok()) return take(*config);
  require(text::is_utf8(std::string(config.status().message())), "the error is valid UTF-8");
}

}  // namespace titan::fuzz
