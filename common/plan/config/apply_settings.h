#pragma once

// Applies the settings of one source after another to a configuration: the catalog finds keys by name,
// parse_overrides() splits command-line words into settings, and the Applier sets the keys and collects the problems.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/aliases.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/load.h"
#include "common/plan/config/raw.h"

namespace titan::config {

// Finds fields by their full name in one JobConfig, which must outlive the catalog.
class Catalog {
 public:
  explicit Catalog(JobConfig& config);

  const Field* find(std::string_view key) const;  // Null when there is no such key.
  // Whether `name` is a section or the beginning of one ("quantize", "quantize.linear").
  bool is_section(std::string_view name) const;
  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<std::string>& section_names() const { return section_names_; }  // Includes outer sections.
  std::vector<std::string> top_sections() const;

 private:
  std::map<std::string, Field, std::less<>> fields_;
  std::vector<std::string> keys_;
  std::vector<std::string> section_names_;
};

// Settings of a command line.
struct Overrides {
  std::vector<Setting> settings;
  std::optional<Setting> nodes;  // --nodes M; sets resources.ranks_per_node once the number of ranks is known.
  bool nproc = false;            // --nproc N was given, so the file's placement, made for another number of ranks, does
                                 // not apply.
};

// Splits command-line words into settings. Appends a problem for each word that is not a setting and each setting that
// lacks its value.
Overrides parse_overrides(const std::vector<std::string>& words, const Catalog& catalog,
                          std::vector<Problem>& problems);

// Applies settings to a configuration, starting from its defaults.
class Applier {
 public:
  // Whether one source may set a key more than once.
  enum class Repeats { kAreErrors, kLastWins };

  Applier() : loaded_(std::make_unique<LoadedConfig>()), catalog_(loaded_->config) {}

  // Applies the settings of one source. An older spelling and its successor conflict only within one source.
  void apply(const std::vector<Setting>& settings, Repeats repeats);
  // Applies --nodes M, after all other settings: ranks_per_node = ranks / M.
  void apply_nodes(const Setting& nodes);
  // Applies --nproc N without --nodes: leaves placement to the scheduler, unless the last source sets ranks_per_node.
  void clear_placement();

  // Checks, after all other settings, that the degrees agree with a sharding strategy that was set.
  void check_sharding();

  // Whether any applied setting has set a key.
  bool sets_keys() const { return !loaded_->origins.empty(); }
  const Catalog& catalog() const { return catalog_; }
  std::vector<Problem>& problems() { return problems_; }
  LoadedConfig take() { return std::move(*loaded_); }

 private:
  void apply_one(Setting setting, Repeats repeats);
  bool check_repeat(const std::string& key, const RawValue& value, const Setting& written, Repeats repeats);
  std::string hint_for(const std::string& key) const;
  void report_unknown(const Setting& setting);
  void complain(const Setting& setting, std::string message, std::string suggestion);
  void warn(const Setting& setting, const std::string& text);

  std::unique_ptr<LoadedConfig> loaded_;  // The catalog refers to it.
  Catalog catalog_;
  std::vector<Problem> problems_;
  // Settings of the current source by current key: as written, and the value as text.
  struct Seen {
    Setting written;
    std::string value;
  };
  std::map<std::string, Seen> seen_;
  std::optional<Setting> sharding_;         // The setting as written.
  std::set<std::string> unknown_sections_;  // Reported once, not once per key.
};

}  // namespace titan::config
