#include "common/plan/config/apply_settings.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"
#include "common/plan/config/aliases.h"
#include "common/plan/config/assign.h"
#include "common/plan/config/normalize_spelling.h"
#include "common/plan/config/other_trainers.h"

namespace titan::config {

Catalog::Catalog(JobConfig& config) {
  for (const Section& section : sections(config)) {
    for (const Field& field : section.fields) {
      keys_.push_back(std::string(section.name) + "." + std::string(field.key));
      fields_.emplace(keys_.back(), field);
    }
    for (std::size_t end = 0; end != section.name.npos;) {
      end = section.name.find('.', end + 1);
      const std::string name(section.name.substr(0, end));
      if (!is_section(name)) section_names_.push_back(name);
    }
  }
}

const Field* Catalog::find(std::string_view key) const {
  const auto found = fields_.find(key);
  return found == fields_.end() ? nullptr : &found->second;
}

bool Catalog::is_section(std::string_view name) const {
  return std::find(section_names_.begin(), section_names_.end(), name) != section_names_.end();
}

std::vector<std::string> Catalog::top_sections() const {
  std::vector<std::string> top;
  std::copy_if(section_names_.begin(), section_names_.end(), std::back_inserter(top),
               [](const std::string& name) { return name.find('.') == name.npos; });
  return top;
}

namespace {

constexpr char kSource[] = "command line";

bool is_flag(const std::string& word) { return absl::StartsWith(word, "--"); }

// Whether the key, or the successor of an older spelling, accepts true or false.
bool is_boolean(const std::string& key, const Catalog& catalog) {
  const KeyAlias* alias = find_alias(key);
  if (alias != nullptr && alias->conversion != ValueConversion::kSame) {
    return alias->conversion == ValueConversion::kNot || alias->conversion == ValueConversion::kFused ||
           alias->conversion == ValueConversion::kFloat8Converter;
  }
  const Field* field = catalog.find(alias != nullptr ? alias->key : std::string_view(key));
  return field != nullptr &&
         (std::holds_alternative<bool*>(field->ref) || std::holds_alternative<std::optional<bool>*>(field->ref));
}

// Returns "metrics.enable_wandb" for "metrics.no_enable_wandb" if that is a boolean key; else "".
std::string negated(const std::string& key, const Catalog& catalog) {
  const std::string name = name_of(key);
  if (!absl::StartsWith(name, "no_") || catalog.find(key) != nullptr) return "";
  const std::string positive = absl::StrCat(section_of(key), ".", name.substr(3));
  return is_boolean(positive, catalog) ? positive : "";
}

bool is_truth(const std::string& word) {
  return word == "true" || word == "false" || word == "True" || word == "False";
}

class Parser {
 public:
  Parser(const std::vector<std::string>& words, const Catalog& catalog, std::vector<Problem>& problems)
      : words_(words), catalog_(catalog), problems_(problems) {}

  Overrides parse() {
    while (next_ < words_.size()) parse_one();
    return std::move(overrides_);
  }

 private:
  void parse_one() {
    const std::string word = words_[next_++];
    if (!is_flag(word)) {
      complain("", word, "unexpected word", "settings are written --section.key value or --section.key=value");
      return;
    }
    const std::size_t equals = word.find('=');
    std::string key = word.substr(2, equals == word.npos ? word.npos : equals - 2);
    std::replace(key.begin(), key.end(), '-', '_');
    std::optional<std::string> value;
    if (equals != word.npos) value = word.substr(equals + 1);

    if (const std::string positive = negated(key, catalog_); !positive.empty()) {
      if (value)
        return complain(key, *value, "takes no value", absl::StrCat("write --", key, " or --", positive, "=", *value));
      return add(positive, raw_bool(false));
    }
    if (is_boolean(key, catalog_)) {
      if (!value && next_ < words_.size() && is_truth(words_[next_])) value = words_[next_++];
      return add(key, value ? raw_word(*value) : raw_bool(true));
    }
    if (!value) {
      if (next_ == words_.size() || is_flag(words_[next_])) {
        // Only for known keys; for others the loader suggests the nearest key.
        if (catalog_.find(key) != nullptr || find_alias(key) != nullptr || key == "nproc" || key == "nodes") {
          return complain(key, "", "needs a value", absl::StrCat("write --", key, " VALUE"));
        }
        return add(key, raw_bool(true));
      }
      value = words_[next_++];
    }
    if (key == "nproc") {
      overrides_.nproc = true;
      return add("resources.ranks", raw_word(*value));
    }
    if (key == "nodes") {
      overrides_.nodes = Setting{"--nodes", raw_word(*value), {kSource, 0}};
      return;
    }
    add(key, raw_word(*value));
  }

  void add(const std::string& key, RawValue value) {
    overrides_.settings.push_back({key, std::move(value), {kSource, 0}});
  }

  void complain(const std::string& key, const std::string& value, std::string message, std::string suggestion) {
    problems_.push_back({{kSource, 0}, key, value, std::move(message), std::move(suggestion)});
  }

  const std::vector<std::string>& words_;
  const Catalog& catalog_;
  std::vector<Problem>& problems_;
  Overrides overrides_;
  std::size_t next_ = 0;
};

}  // namespace

Overrides parse_overrides(const std::vector<std::string>& words, const Catalog& catalog,
                          std::vector<Problem>& problems) {
  return Parser(words, catalog, problems).parse();
}

namespace {

// Number of problems from which hints are left out, since each hint costs a millisecond.
constexpr size_t kMaxHints = 200;

std::string where(const Origin& origin) {
  return origin.line > 0 ? absl::StrCat(origin.file, ":", origin.line) : origin.file;
}

// Returns the same text for a list and for its comma-separated form, since converters are written both ways.
std::string value_text(const RawValue& value) {
  if (value.kind == RawValue::Kind::kString || value.kind == RawValue::Kind::kWord) return value.text;
  if (value.kind != RawValue::Kind::kList) return display(value);
  return absl::StrJoin(value.items, ",", [](std::string* out, const RawValue& item) { out->append(value_text(item)); });
}

}  // namespace

void Applier::apply(const std::vector<Setting>& settings, Repeats repeats) {
  seen_.clear();
  for (const Setting& setting : settings) apply_one(setting, repeats);
}

void Applier::apply_one(Setting setting, Repeats repeats) {
  const Setting written = setting;
  const KeyAlias* alias = catalog_.find(setting.key) == nullptr ? find_alias(setting.key) : nullptr;
  if (alias != nullptr) {
    setting.key = std::string(alias->key);
    if (std::optional<FieldError> bad = convert_value(alias->conversion, setting.value)) {
      return complain(written, bad->message, bad->suggestion);
    }
  }
  if (const std::string_view reason = explain_without_effect(setting.key, setting.value); !reason.empty()) {
    return warn(written, absl::StrCat("has no effect: ", std::string(reason)));
  }
  const Field* field = catalog_.find(setting.key);
  if (field == nullptr) return report_unknown(setting);
  const std::optional<Implied> implied = implied_by(setting.key, setting.value);
  const std::string as_turned = display(setting.value);
  replace_value_aliases(setting.key, setting.value);
  const std::string as_taken = display(setting.value);
  if (!check_repeat(setting.key, setting.value, written, repeats)) return;
  const std::vector<std::string> remarks = normalize_spelling(*field, setting.value);
  if (std::optional<FieldError> bad = assign(*field, setting.value)) {
    return complain(written, bad->message, bad->suggestion);
  }
  if (alias != nullptr) {
    const std::string becomes =
        alias->conversion == ValueConversion::kSame ? "" : absl::StrCat(" = ", display(setting.value));
    warn(written, absl::StrCat("is an older spelling of ", setting.key, becomes));
  }
  // torchtitan itself uses the short names of converters, too.
  const bool is_older = as_taken != as_turned && !implied && setting.key != "model.converters";
  if (is_older) warn(written, absl::StrCat("= ", as_turned, " is read as ", as_taken));
  for (const std::string& remark : remarks) warn(written, absl::StrCat("= ", display(written.value), " ", remark));
  if (alias != nullptr && alias->conversion == ValueConversion::kSharding) sharding_ = written;
  if (!field->no_effect.empty()) warn(written, absl::StrCat("has no effect: ", std::string(field->no_effect)));
  loaded_->origins[setting.key] = setting.origin;
  if (!implied) return;
  Setting other{
      .key = std::string(implied->key), .value = raw_string(std::string(implied->value)), .origin = setting.origin};
  other.value.line = setting.value.line;
  apply_one(std::move(other), repeats);
}

// Returns false if this source has already set the key, under this or another spelling, and reports the repetition.
// With kLastWins the same spelling may repeat.
bool Applier::check_repeat(const std::string& key, const RawValue& value, const Setting& written, Repeats repeats) {
  const std::string text = value_text(value);
  const auto [first, is_new] = seen_.emplace(key, Seen{written, text});
  const Setting& before = first->second.written;
  const bool same_key = before.key == written.key;
  if (is_new || (repeats == Repeats::kLastWins && same_key)) return true;
  const std::string there = absl::StrCat(" (", where(before.origin), ")");
  if (same_key) {
    complain(written, absl::StrCat("set twice (first at ", where(before.origin), ")"), absl::StrCat("keep only ", key));
  } else if (text == first->second.value) {
    warn(written, absl::StrCat("has the same meaning as ", before.key, there, "; keep only ", key));
  } else {
    complain(written,
             absl::StrCat("means ", key, " = ", display(value), ", and ", before.key, " = ", display(before.value),
                          there, " contradicts it"),
             absl::StrCat("keep only ", key));
  }
  return false;
}

// Returns advice or "did you mean ...?" for a key that does not exist; empty when nothing is near.
std::string Applier::hint_for(const std::string& key) const {
  if (std::string text = explain_unknown_name(name_of(key)); !text.empty()) return text;
  const std::string near = nearest_key(key, catalog_.keys());
  return near.empty() ? "" : absl::StrCat("did you mean ", near, "?");
}

void Applier::report_unknown(const Setting& setting) {
  if (problems_.size() >= kMaxHints) return complain(setting, "unknown key", "");
  const bool is_table = setting.value.kind == RawValue::Kind::kTable;
  const std::string note(explain_unknown(is_table ? absl::StrCat(setting.key, ".") : setting.key));
  if (!note.empty()) return complain(setting, is_table ? "unknown section" : "unknown key", note);
  const std::string section = section_of(setting.key);
  if (catalog_.is_section(setting.key)) {
    if (is_table) return;  // An empty section.
    const std::string word = explain_unknown_name(setting.key);
    return complain(setting, "is a section, not a key",
                    absl::StrCat("write [", setting.key, "] with keys below it", word.empty() ? "" : ": ", word));
  }
  // A section that does not exist is one mistake, regardless of its keys.
  if (is_table || (!section.empty() && !catalog_.is_section(section))) {
    const std::string name = is_table ? setting.key : section;
    if (!unknown_sections_.insert(name).second) return;
    std::string hint = explain_section(name);
    if (const std::string near = nearest(name, catalog_.section_names()); hint.empty() && !near.empty()) {
      hint = absl::StrCat("did you mean ", near, "?");
    }
    // For a single key that exists elsewhere, a hint is better than a list of sections.
    if (hint.empty()) hint = hint_for(setting.key);
    if (hint.empty()) hint = absl::StrCat("sections are ", absl::StrJoin(catalog_.top_sections(), ", "));
    // In YAML a key without a value looks like a section.
    const bool bare = is_table && setting.value.members.empty() && absl::StartsWith(hint, "set ");
    return complain(setting, bare ? "unknown key" : absl::StrCat("unknown section [", printable(name), "]"), hint);
  }
  complain(setting, "unknown key", hint_for(setting.key));
}

void Applier::apply_nodes(const Setting& nodes) {
  int count = 0;
  if (!absl::SimpleAtoi(nodes.value.text, &count) || count < 1) {
    return complain(nodes, "expects an integer, at least 1", "");
  }
  const int ranks = loaded_->config.resources.ranks;
  if (const auto set = seen_.find("resources.ranks_per_node"); set != seen_.end()) {
    return complain(nodes, absl::StrCat("means the same as ", set->second.written.key, ", which is set too"),
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
  if (std::optional<FieldError> bad = check_degrees(*strategy, loaded_->config)) {
    complain(*sharding_, bad->message, bad->suggestion);
  }
}

void Applier::clear_placement() {
  if (seen_.contains("resources.ranks_per_node")) return;
  loaded_->config.resources.ranks_per_node = ResourcesSection{}.ranks_per_node;
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
