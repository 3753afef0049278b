// Checks of the datasets that a job names: Titan's own, and those of a library, which only a rank looks into.
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"
#include "common/io/hub/dataset_path.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/checker.h"

namespace titan::config {
namespace {

// Where a complaint about a dataset goes: keys of a section, or all to the list of sources.
struct Place {
  std::string dataset, path, settings;  // Keys; the last begins those of how files are read.
  bool source = false;
  std::string name;  // The source's.
  std::string key(const std::string& base, const char* of) const { return source ? base : absl::StrCat(base, of); }
};

// What of the keys for Titan's own formats somebody set for it.
struct Settings {
  std::string format, text_key, text_documents, shuffle;
};

void refuse_settings(Checker& check, const Place& place, const Settings& set) {
  const DataLoader own;
  const auto refuse = [&](const char* key, const std::string& value, const std::string& default_value) {
    if (value == default_value) return;
    check.fail(place.key(place.settings, key), value,
               absl::StrCat(place.source ? absl::StrCat("source \"", place.name, "\": ", key + 1, " ") : "",
                            "says how Titan reads files, and a library reads those of this dataset"),
               "leave it out");
  };
  refuse(".format", set.format, own.format);
  refuse(".text_key", set.text_key, own.text_key);
  refuse(".text_documents", set.text_documents, own.text_documents);
  if (set.shuffle != "rows") return;
  check.fail(place.key(place.settings, ".shuffle"), set.shuffle,
             "shuffles rows of token indexes, and a library's dataset has documents", "set it to \"documents\"");
}

void check_library_dataset(Checker& check, const Place& place, const std::string& dataset,
                           const std::optional<std::string>& path, const Settings& set) {
  if (!path.has_value()) {
    check.fail(place.dataset, dataset, "is a library's, which reads files, and nothing says which",
               absl::StrCat("set ", place.source ? "the source's dataset_path" : place.path,
                            " to their folder, to a glob or to a file"));
  } else if (hub::is_hub_path(*path)) {
    check.fail(place.path, *path, absl::StrCat("is of a hub, and the dataset ", dataset, " reads files of the machine"),
               "fetch them with titanctl assets get, and name their folder");
  }
  refuse_settings(check, place, set);
}

void refuse_name(Checker& check, const std::string& key, const std::string& dataset) {
  const std::vector<std::string> known(std::begin(kTitansDatasets), std::end(kTitansDatasets));
  const std::string near = nearest(dataset, known);
  const std::string path = name_of(key) == "sources" ? "the source's dataset_path" : section_of(key) + ".dataset_path";
  check.fail(key, dataset,
             absl::StrCat("not one of the allowed values ", absl::StrJoin(known, ", "),
                          ", and no library (experimental.custom_import) brings another"),
             near.empty() ? absl::StrCat("for files of your own set ", path, " and no dataset")
                          : absl::StrCat("did you mean ", near, "?"));
}

}  // namespace

void check_dataset_names(Checker& check) {
  const JobConfig& config = check.config();
  if (!config.experimental.custom_import.empty()) return;
  const auto named = [&](const std::string& key, const std::string& dataset) {
    if (!is_titans_dataset(dataset)) refuse_name(check, key, dataset);
  };
  const auto section = [&](const std::string& name, const std::string& dataset, const DataLoader& settings) {
    named(name + ".dataset", dataset);
    for (const DataSource& source : settings.sources) {
      if (source.dataset) named(name + ".dataloader.sources", *source.dataset);
    }
  };
  section("training", config.training.dataset, config.training.dataloader);
  section("validation", config.validation.dataset, config.validation.dataloader);
}

void check_datasets(Checker& check, const std::string& section, const std::string& dataset,
                    const std::optional<std::string>& dataset_path, const DataLoader& settings) {
  if (check.config().experimental.custom_import.empty()) return;  // check_dataset_names() has said it.
  const std::string loader = absl::StrCat(section, ".dataloader"), sources = absl::StrCat(loader, ".sources");
  if (settings.sources.empty() && !is_titans_dataset(dataset)) {
    const Place place{absl::StrCat(section, ".dataset"), absl::StrCat(section, ".dataset_path"), loader};
    check_library_dataset(check, place, dataset, dataset_path,
                          {settings.format, settings.text_key, settings.text_documents, settings.shuffle});
  }
  // What a source does not say itself is meant for the others.
  const DataLoader own;
  for (const DataSource& source : settings.sources) {
    if (!source.dataset || is_titans_dataset(*source.dataset)) continue;
    check_library_dataset(
        check, {sources, sources, sources, true, source.name}, *source.dataset, source.dataset_path,
        {source.format.value_or(own.format), source.text_key.value_or(own.text_key),
         source.text_documents.value_or(own.text_documents), source.shuffle.value_or(settings.shuffle)});
  }
}

}  // namespace titan::config
