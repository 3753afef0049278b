#include "common/config/apply.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/any_spelling.h"
#include "common/config/assign.h"
#include "common/config/sharding_strategy.h"
#include "common/text/nearest.h"

namespace titan::config {
namespace {

// Who has more wrong keys than this needs no hints, which cost a millisecond each.
constexpr size_t kMostHints = 200;

std::string where(const Origin& origin) {
  return origin.line > 0 ? absl::StrCat(origin.file, ":", origin.line) : origin.file;
}

}  // namespace

void Applier::apply(const std::vector<Setting>& settings, Repeats repeats) {
  seen_.clear();
  for (const Setting& setting : settings) apply_one(setting, repeats);
}

void Applier::apply_one(Setting setting, Repeats repeats) {
  const Setting written = setting;
  const Alias* alias = catalog_.find(setting.key) == nullptr ? find_alias(setting.key) : nullptr;
  if (alias != nullptr) {
    setting.key = std::string(alias->key);
    if (std::optional<Complaint> bad = turn_value(alias->turn, setting.value)) {
      return complain(written, bad->message, bad->suggestion);
    }
  }
  if (const std::string_view reason = explain_without_effect(setting.key, setting.value); !reason.empty()) {
    return warn(written, absl::StrCat("has no effect: ", std::string(reason)));
  }
  const Field* field = catalog_.find(setting.key);
  if (field == nullptr) return report_unknown(setting);
  if (!check_repeat(setting.key, written, repeats)) return;
  const std::optional<Implied> implied = implied_by(setting.key, setting.value);
  replace_value_aliases(setting.key, setting.value);
  const std::vector<std::string> remarks = use_listed_spelling(*field, setting.value);
  if (std::optional<Complaint> bad = assign(*field, setting.value)) {
    return complain(written, bad->message, bad->suggestion);
  }
  if (alias != nullptr) warn(written, absl::StrCat("is an older spelling of ", setting.key));
  for (const std::string& remark : remarks) warn(written, absl::StrCat("= ", display(written.value), " ", remark));
  if (alias != nullptr && alias->turn == Turn::kSharding) sharding_ = written;
  if (!field->no_effect.empty()) warn(written, absl::StrCat("has no effect: ", std::string(field->no_effect)));
  loaded_->origins[setting.key] = setting.origin;
  if (!implied) return;
  Setting other{
      .key = std::string(implied->key), .value = raw_string(std::string(implied->value)), .origin = setting.origin};
  other.value.line = setting.value.line;
  apply_one(std::move(other), repeats);
}

// False when the key was set before by the same source in a way that leaves open which value is meant.
bool Applier::check_repeat(const std::string& key, const Setting& setting, Repeats repeats) {
  const auto [first, is_new] = seen_.emplace(key, setting);
  if (is_new || (repeats == Repeats::kLastWins && first->second.key == setting.key)) return true;
  const bool same = first->second.key == setting.key;
  complain(setting,
           same ? absl::StrCat("set twice (first at ", where(first->second.origin), ")")
                : absl::StrCat("means the same as ", first->second.key, ", which is set too (",
                               where(first->second.origin), ")"),
           absl::StrCat("keep only ", key));
  return false;
}

void Applier::report_unknown(const Setting& setting) {
  if (problems_.size() >= kMostHints) return complain(setting, "unknown key", "");
  if (const std::string_view text = explain_unknown(setting.key); !text.empty()) {
    return complain(setting, "unknown key", std::string(text));
  }
  const std::string section = section_of(setting.key);
  if (catalog_.is_section(setting.key)) {
    if (setting.value.kind == Raw::Kind::kTable) return;  // An empty section.
    return complain(setting, "is a section, not a key", absl::StrCat("write [", setting.key, "] with keys below it"));
  }
  const bool is_table = setting.value.kind == Raw::Kind::kTable;
  // A whole section that does not exist is one mistake, whatever stands in it.
  if (is_table || (!section.empty() && !catalog_.is_section(section))) {
    const std::string name = is_table ? setting.key : section;
    if (!unknown_sections_.insert(name).second) return;
    std::string near = nearest(name, catalog_.section_names());
    // A lone key that exists in one other section is the better hint than a section of a similar name.
    if (near.empty() && !is_table) near = nearest_key(setting.key, catalog_.keys());
    return complain(setting, absl::StrCat("unknown section [", printable(name), "]"),
                    near.empty() ? "sections are those of torchtitan 0.2.2 plus resources, restart and scheduling"
                                 : absl::StrCat("did you mean ", near, "?"));
  }
  const std::string near = nearest_key(setting.key, catalog_.keys());
  complain(setting, "unknown key", near.empty() ? "" : absl::StrCat("did you mean ", near, "?"));
}

void Applier::apply_nodes(const Setting& nodes) {
  int count = 0;
  if (!absl::SimpleAtoi(nodes.value.text, &count) || count < 1) {
    return complain(nodes, "expects an integer, at least 1", "");
  }
  const int ranks = loaded_->config.resources.ranks;
  if (const auto set = seen_.find("resources.ranks_per_node"); set != seen_.end()) {
    return complain(nodes, absl::StrCat("means the same as ", set->second.key, ", which is set too"),
                    "keep one of them");
  }
  if (ranks % count != 0) {
    return complain(nodes, absl::StrCat("does not divide resources.ranks ", ranks),
                    absl::StrCat("use a number of nodes that divides ", ranks));
  }
  loaded_->config.resources.ranks_per_node = ranks / count;
  loaded_->origins["resources.ranks_per_node"] = nodes.origin;
}

void Applier::check_sharding() {
  if (!sharding_ || !problems_.empty()) return;
  const ShardingStrategy* strategy = find_sharding_strategy(sharding_->value.text);
  if (strategy == nullptr) return;
  if (std::optional<Complaint> bad = check_degrees(*strategy, loaded_->config)) {
    complain(*sharding_, bad->message, bad->suggestion);
  }
}

void Applier::free_placement() {
  if (seen_.contains("resources.ranks_per_node")) return;
  loaded_->config.resources.ranks_per_node = Resources{}.ranks_per_node;
  loaded_->origins.erase("resources.ranks_per_node");
}

void Applier::complain(const Setting& setting, std::string message, std::string suggestion) {
  problems_.push_back(
      {setting.origin, printable(setting.key), display(setting.value), std::move(message), std::move(suggestion)});
}

void Applier::warn(const Setting& setting, const std::string& text) {
  loaded_->warnings.push_back(absl::StrCat(where(setting.origin), ": ", setting.key, " ", text));
}

}  // namespace titan::config
