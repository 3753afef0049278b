#include "controller/cli/bench/plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::cli {
namespace {

absl::Status bad_variant(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--variant '", text, "': ", why, "; it is NAME='--section.key value ...'"));
}

bool is_name(const std::string& text) {
  return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

bool is_key(const std::string& word) { return absl::StartsWith(word, "--") && absl::StrContains(word, '.'); }

// Splits in one pass; `word_` is the part of the current word that was read.
class Words {
 public:
  absl::StatusOr<std::vector<std::string>> read(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\' && quote_ != '\'' && i + 1 < text.size()) {
        add(text[++i]);
      } else if (quote_ != 0) {
        text[i] == quote_ ? close() : add(text[i]);
      } else if (text[i] == '"' || text[i] == '\'') {
        quote_ = text[i];
        in_word_ = true;
      } else if (absl::ascii_isspace(static_cast<unsigned char>(text[i]))) {
        end_word();
      } else {
        add(text[i]);
      }
    }
    if (quote_ != 0) return absl::InvalidArgumentError(absl::StrCat("a ", std::string(1, quote_), " is not closed"));
    end_word();
    return std::move(words_);
  }

 private:
  void add(char c) {
    word_ += c;
    in_word_ = true;
  }
  void close() { quote_ = 0; }
  void end_word() {
    if (std::exchange(in_word_, false)) words_.push_back(std::exchange(word_, ""));
  }

  std::vector<std::string> words_;
  std::string word_;
  bool in_word_ = false;  // Also true for an empty word, once a quote began it.
  char quote_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> split_words(std::string_view text) { return Words().read(text); }

absl::StatusOr<Variant> parse_variant(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return bad_variant(text, "there is no '='");
  Variant variant{.name = text.substr(0, equals), .overrides = {}};
  if (!is_name(variant.name)) return bad_variant(text, "a name is letters, digits, '_', '-' and '.'");
  auto words = split_words(std::string_view(text).substr(equals + 1));
  if (!words.ok()) return bad_variant(text, std::string(words.status().message()));
  variant.overrides = *std::move(words);
  if (variant.overrides.empty()) return bad_variant(text, "it changes no key");
  if (!is_key(variant.overrides[0])) {
    return bad_variant(text, absl::StrCat("'", variant.overrides[0], "' is not a configuration key"));
  }
  return variant;
}

absl::StatusOr<std::vector<Variant>> parse_variants(const std::vector<std::string>& texts, const std::string& first) {
  std::set<std::string> names = {first};
  std::vector<Variant> variants;
  for (const std::string& text : texts) {
    TITAN_ASSIGN_OR_RETURN(Variant variant, parse_variant(text));
    if (!names.insert(variant.name).second) {
      return bad_variant(text, absl::StrCat("the name '", variant.name, "' is taken"));
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

std::vector<int> order_of_runs(int configurations, int repeats) {
  std::vector<int> order;
  for (int round = 0; round < repeats; ++round) {
    for (int i = 0; i < configurations; ++i) order.push_back(round % 2 == 0 ? i : configurations - 1 - i);
  }
  return order;
}

}  // namespace titan::cli
