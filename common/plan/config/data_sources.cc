#include "common/plan/config/data_sources.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/nearest.h"
#include "common/io/hub/names.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/model_kind.h"

namespace titan::config {

DataLoaderSection settings_of(const DataSource& source, DataLoaderSection settings) {
  settings.format = source.format.value_or(settings.format);
  settings.text_key = source.text_key.value_or(settings.text_key);
  settings.messages_key = source.messages_key.value_or(settings.messages_key);
  settings.train_on = source.train_on.value_or(settings.train_on);
  settings.text_documents = source.text_documents.value_or(settings.text_documents);
  return settings;
}

namespace {

constexpr double kUnits = 1e9;  // Units of a weight of 1.
constexpr double kMaxWeight = 1e6;

absl::StatusOr<std::int64_t> units(double weight) {
  if (!(weight >= 0) || weight > kMaxWeight) return absl::InvalidArgumentError("the weight must be from 0 to 1e6");
  const auto count = static_cast<std::int64_t>(std::floor(weight * kUnits + 0.5));
  if (weight > 0 && count == 0) return absl::InvalidArgumentError("the weight must be 0, or at least 1e-9");
  return count;
}

struct Change {
  std::int64_t step = 0;
  std::int64_t weight = 0;
};

absl::StatusOr<Change> change_of(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  Change change;
  double weight = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(absl::StripAsciiWhitespace(parts[0]), &change.step) ||
      !absl::SimpleAtod(absl::StripAsciiWhitespace(parts[1]), &weight) || change.step < 2) {
    return absl::InvalidArgumentError("expects STEP: WEIGHT, such as \"1000: 0.25\", with a step of 2 or more");
  }
  TITAN_ASSIGN_OR_RETURN(change.weight, units(weight));
  return change;
}

// Returns the weights of one source by the step at which each begins.
absl::StatusOr<std::map<std::int64_t, std::int64_t>> changes_of(const DataSource& source) {
  std::map<std::int64_t, std::int64_t> changes;
  const auto named = [&](const absl::Status& status, const std::string& member) {
    return annotate(status, absl::StrCat("source \"", source.name, "\": ", member));
  };
  const absl::StatusOr<std::int64_t> first = units(source.weight);
  if (!first.ok()) return named(first.status(), absl::StrCat("weight = ", source.weight));
  changes[1] = *first;
  for (const std::string& text : source.weight_at_step) {
    const std::string member = absl::StrCat("weight_at_step \"", text, "\"");
    const absl::StatusOr<Change> change = change_of(text);
    if (!change.ok()) return named(change.status(), member);
    if (change->step <= changes.rbegin()->first) {
      return named(absl::InvalidArgumentError("its step must be above the previous one"), member);
    }
    changes[change->step] = change->weight;
  }
  return changes;
}

}  // namespace

absl::StatusOr<std::vector<SourceWeights>> source_weights(const std::vector<DataSource>& sources) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_step;
  std::vector<std::map<std::int64_t, std::int64_t>> all;
  for (const DataSource& source : sources) {
    TITAN_ASSIGN_OR_RETURN(all.emplace_back(), changes_of(source));
    for (const auto& [step, weight] : all.back()) by_step[step];
  }
  std::vector<SourceWeights> schedule;
  for (auto& [step, weights] : by_step) {
    for (const auto& changes : all) weights.push_back(std::prev(changes.upper_bound(step))->second);
    if (std::all_of(weights.begin(), weights.end(), [](std::int64_t weight) { return weight == 0; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("no source has a weight above 0 from step ", step, " on: give one of them a weight"));
    }
    schedule.push_back({step, weights});
  }
  return schedule;
}

namespace {

// Names are parts of metric names, which slashes separate.
bool is_source_name(const std::string& name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

void check_names(Checker& check, const std::string& key, const std::vector<DataSource>& sources) {
  std::set<std::string> seen;
  for (const DataSource& source : sources) {
    if (!is_source_name(source.name)) {
      check.fail(key, source.name, "a source's name must be 1 to 63 letters, digits, \"-\", \"_\" or \".\"", "");
    }
    if (!seen.insert(source.name).second) {
      check.fail(key, source.name, "two sources have this name", "give each source a different name");
    }
  }
}

void check_places(Checker& check, const std::string& key, const std::vector<DataSource>& sources) {
  for (const DataSource& source : sources) {
    if (!source.dataset && !source.dataset_path) {
      check.fail(key, source.name, "the source has no data", "set its dataset_path, or its dataset");
    }
    if (!source.dataset_path || !hub::is_hub_path(*source.dataset_path)) continue;
    if (const auto parsed = hub::parse_dataset_path(*source.dataset_path); !parsed.ok()) {
      check.fail(key, *source.dataset_path, std::string(parsed.status().message()), "");
    }
  }
}

// Rows are shuffled before packing decides their contents.
void check_packing(Checker& check, const std::string& section, const DataLoaderSection& settings) {
  const auto rows = [](const DataSource& source) { return source.shuffle == "rows"; };
  const bool shuffled =
      settings.shuffle == "rows" || std::any_of(settings.sources.begin(), settings.sources.end(), rows);
  if (settings.packing != "best_fit" || !shuffled) return;
  check.fail(absl::StrCat(section, ".dataloader.packing"), settings.packing,
             "packs documents, but shuffle = \"rows\" shuffles rows of one stream", "set shuffle = \"documents\"");
}

}  // namespace

// Checks packing, [[SECTION.dataloader.sources]] and the keys that they exclude.
void check_sources(Checker& check, const std::string& section, const DataLoaderSection& settings,
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
    check.fail(absl::StrCat(section, ".dataloader.order"), settings.order, "distributes documents of one dataset only",
               absl::StrCat("set it to \"global\", or leave out ", key));
  }
  if (dataset_path.has_value()) {
    check.fail(absl::StrCat(section, ".dataset_path"), *dataset_path, absl::StrCat("is ignored with ", key),
               "leave it out, or make it a source's dataset_path");
  }
}

namespace {

// Keys to report with problems of a dataset: those of its section, or for a source always the list of sources.
struct Place {
  std::string dataset, path, settings;  // `settings` is the prefix of the keys for reading files.
  bool source = false;
  std::string name;  // Name of the source.
  std::string key(const std::string& base, const char* of) const { return source ? base : absl::StrCat(base, of); }
};

// A dataset's values of the keys that configure how Titan reads its own formats.
struct Settings {
  std::string format, text_key, text_documents, shuffle;
};

void refuse_settings(Checker& check, const Place& place, const Settings& set) {
  const DataLoaderSection own;
  const auto refuse = [&](const char* key, const std::string& value, const std::string& default_value) {
    if (value == default_value) return;
    check.fail(place.key(place.settings, key), value,
               absl::StrCat(place.source ? absl::StrCat("source \"", place.name, "\": ", key + 1, " ") : "",
                            "configures how Titan reads files, but a library reads those of this dataset"),
               "leave it out");
  };
  refuse(".format", set.format, own.format);
  refuse(".text_key", set.text_key, own.text_key);
  refuse(".text_documents", set.text_documents, own.text_documents);
  if (set.shuffle != "rows") return;
  check.fail(place.key(place.settings, ".shuffle"), set.shuffle,
             "shuffles rows of token indexes, but a library's dataset has documents", "set it to \"documents\"");
}

void check_library_dataset(Checker& check, const Place& place, const std::string& dataset,
                           const std::optional<std::string>& path, const Settings& set) {
  if (!path.has_value()) {
    check.fail(place.dataset, dataset, "is a library's dataset, which needs a path to its files",
               absl::StrCat("set ", place.source ? "the source's dataset_path" : place.path,
                            " to their folder, to a glob or to a file"));
  } else if (hub::is_hub_path(*path)) {
    check.fail(place.path, *path, absl::StrCat("is on a hub, but the dataset ", dataset, " reads local files"),
               "download them with titanctl assets get, and name their folder");
  }
  refuse_settings(check, place, set);
}

void refuse_name(Checker& check, const std::string& key, const std::string& dataset) {
  std::vector<std::string> known(std::begin(kBuiltinDatasets), std::end(kBuiltinDatasets));
  if (learns_from_images(check.config().model)) known.assign(std::begin(kImageDatasets), std::end(kImageDatasets));
  const std::string near = nearest(dataset, known);
  const std::string path = name_of(key) == "sources" ? "the source's dataset_path" : section_of(key) + ".dataset_path";
  check.fail(key, dataset,
             absl::StrCat("not one of the allowed values ", absl::StrJoin(known, ", "),
                          ", and there is no library (experimental.custom_import) with others"),
             near.empty() ? absl::StrCat("for your own files set ", path, " and no dataset")
                          : absl::StrCat("did you mean ", near, "?"));
}

}  // namespace

void check_dataset_names(Checker& check) {
  const JobConfig& config = check.config();
  if (!config.experimental.custom_import.empty()) return;
  const auto named = [&](const std::string& key, const std::string& dataset) {
    if (!is_builtin_dataset(dataset)) refuse_name(check, key, dataset);
  };
  const auto section = [&](const std::string& name, const std::string& dataset, const DataLoaderSection& settings) {
    if (!is_image_dataset(dataset)) named(name + ".dataset", dataset);  // check_images() looks at the others.
    for (const DataSource& source : settings.sources) {
      if (source.dataset) named(name + ".dataloader.sources", *source.dataset);
    }
  };
  section("training", config.training.dataset, config.training.dataloader);
  section("validation", config.validation.dataset, config.validation.dataloader);
}

// Only a rank loads a library's dataset; this checks the keys set for it.
void check_datasets(Checker& check, const std::string& section, const std::string& dataset,
                    const std::optional<std::string>& dataset_path, const DataLoaderSection& settings) {
  if (check.config().experimental.custom_import.empty()) return;  // check_dataset_names() has reported it.
  if (learns_from_images(check.config().model)) return;           // check_images() looks at these.
  const std::string loader = absl::StrCat(section, ".dataloader"), sources = absl::StrCat(loader, ".sources");
  if (settings.sources.empty() && !is_builtin_dataset(dataset)) {
    const Place place{absl::StrCat(section, ".dataset"), absl::StrCat(section, ".dataset_path"), loader};
    check_library_dataset(check, place, dataset, dataset_path,
                          {settings.format, settings.text_key, settings.text_documents, settings.shuffle});
  }
  // Values inherited from the dataloader are meant for the other sources.
  const DataLoaderSection own;
  for (const DataSource& source : settings.sources) {
    if (!source.dataset || is_builtin_dataset(*source.dataset)) continue;
    check_library_dataset(
        check, {sources, sources, sources, true, source.name}, *source.dataset, source.dataset_path,
        {source.format.value_or(own.format), source.text_key.value_or(own.text_key),
         source.text_documents.value_or(own.text_documents), source.shuffle.value_or(settings.shuffle)});
  }
}

}  // namespace titan::config
