#include "controller/cli/labels.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"

namespace titan::cli {
namespace {

absl::Status no_label(const char* flag, const std::string& word, const char* form) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " '", word, "': write ", form));
}

absl::StatusOr<std::pair<std::string, std::string>> parse_label(const std::string& word, const char* form) {
  const size_t equals = word.find('=');
  if (equals == 0 || equals == word.npos) return no_label("--label", word, form);
  return std::pair(word.substr(0, equals), word.substr(equals + 1));
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words) {
  std::map<std::string, std::string> labels;
  for (const std::string& word : words) {
    TITAN_ASSIGN_OR_RETURN(const auto label, parse_label(word, "KEY=VALUE"));
    labels[label.first] = label.second;
  }
  return labels;
}

absl::Status add_label_changes(const std::vector<std::string>& words, v1::UpdateJobRequest& request) {
  for (const std::string& word : words) {
    std::string key;
    if (word.size() > 1 && absl::EndsWith(word, "-") && !absl::StrContains(word, "=")) {
      key = word.substr(0, word.size() - 1);
    } else {
      TITAN_ASSIGN_OR_RETURN(const auto label, parse_label(word, "KEY=VALUE, or KEY- to take it away"));
      key = label.first;
      (*request.mutable_job()->mutable_labels())[key] = label.second;
    }
    request.mutable_update_mask()->add_paths(absl::StrCat("labels.", key));
  }
  return absl::OkStatus();
}

std::string quote(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

absl::StatusOr<std::string> label_filter(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == word.npos) return absl::StrCat("labels:", quote(word));
  const bool unequal = equals > 0 && word[equals - 1] == '!';
  const std::string key = word.substr(0, unequal ? equals - 1 : equals);
  if (key.empty()) return no_label("--label", word, "KEY=VALUE, KEY!=VALUE or KEY");
  return absl::StrCat("labels.", quote(key), unequal ? " != " : " = ", quote(word.substr(equals + 1)));
}

}  // namespace titan::cli
