// Checks of [[training.dataloader.sources]] and of how rows are made.
#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/io/hub/dataset_path.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/source_weights.h"

namespace titan::config {
namespace {

// Names stand in metrics, whose parts slashes divide.
bool is_source_name(const std::string& name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

void check_names(Checker& check, const std::string& key, const std::vector<DataSource>& sources) {
  std::set<std::string> seen;
  for (const DataSource& source : sources) {
    if (!is_source_name(source.name)) {
      check.fail(key, source.name, "a source's name has letters, digits, \"-\", \"_\" and \".\", at most 63", "");
    }
    if (!seen.insert(source.name).second) {
      check.fail(key, source.name, "two sources have this name", "name each source otherwise");
    }
  }
}

void check_places(Checker& check, const std::string& key, const std::vector<DataSource>& sources) {
  for (const DataSource& source : sources) {
    if (!source.dataset && !source.dataset_path) {
      check.fail(key, source.name, "the source names no data", "set its dataset_path, or its dataset");
    }
    if (!source.dataset_path || !hub::is_hub_path(*source.dataset_path)) continue;
    if (const auto parsed = hub::parse_dataset_path(*source.dataset_path); !parsed.ok()) {
      check.fail(key, *source.dataset_path, std::string(parsed.status().message()), "");
    }
  }
}

// Rows are shuffled before anybody knows what is packed in them.
void check_packing(Checker& check, const std::string& section, const DataLoader& settings) {
  const auto rows = [](const DataSource& source) { return source.shuffle == "rows"; };
  const bool shuffled =
      settings.shuffle == "rows" || std::any_of(settings.sources.begin(), settings.sources.end(), rows);
  if (settings.packing != "best_fit" || !shuffled) return;
  check.fail(absl::StrCat(section, ".dataloader.packing"), settings.packing,
             "packs documents, and shuffle = \"rows\" shuffles rows of one stream", "set shuffle = \"documents\"");
}

}  // namespace

void check_sources(Checker& check, const std::string& section, const DataLoader& settings,
                   const std::optional<std::string>& dataset_path) {
  check_packing(check, section, settings);
  if (settings.sources.empty()) return;
  const std::string key = absl::StrCat(section, ".dataloader.sources");
  check_names(check, key, settings.sources);
  check_places(check, key, settings.sources);
  if (const auto weights = source_weights(settings.sources); !weights.ok()) {
    check.fail(key, absl::StrCat(settings.sources.size(), " sources"), std::string(weights.status().message()), "");
  }
  for (const DataSource& source : settings.sources) {
    if (section == "training" || source.weight_at_step.empty()) continue;
    check.fail(key, source.name, "weight_at_step has no effect in validation, which reads the same rows each time",
               "leave it out");
  }
  if (settings.order != "global") {
    check.fail(absl::StrCat(section, ".dataloader.order"), settings.order, "deals documents of one dataset alone",
               absl::StrCat("set it to \"global\", or leave out ", key));
  }
  if (dataset_path.has_value()) {
    check.fail(absl::StrCat(section, ".dataset_path"), *dataset_path, absl::StrCat("is not read beside ", key),
               "leave it out, or make it a source's dataset_path");
  }
}

}  // namespace titan::config
