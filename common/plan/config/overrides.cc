#include "common/plan/config/overrides.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/nearest.h"
#include "common/plan/config/aliases.h"

namespace titan::config {
namespace {

constexpr char kSource[] = "command line";

bool is_flag(const std::string& word) { return absl::StartsWith(word, "--"); }

// Whether the key, or the one that it is an older spelling of, takes true or false.
bool is_boolean(const std::string& key, const Catalog& catalog) {
  const Alias* alias = find_alias(key);
  if (alias != nullptr && alias->turn != Turn::kSame) {
    return alias->turn == Turn::kNot || alias->turn == Turn::kFused || alias->turn == Turn::kFloat8Converter;
  }
  const Field* field = catalog.find(alias != nullptr ? alias->key : std::string_view(key));
  return field != nullptr && std::holds_alternative<bool*>(field->ref);
}

// "metrics.no_enable_wandb" -> "metrics.enable_wandb" when that is a boolean key; "" otherwise.
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
        // Said only of known keys: for others the loader names the nearest.
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

  void add(const std::string& key, Raw value) { overrides_.settings.push_back({key, std::move(value), {kSource, 0}}); }

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

}  // namespace titan::config
