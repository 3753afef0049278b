#include "controller/core/labels.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"

namespace titan::core {
namespace {

constexpr size_t kMaxLength = 63;

bool is_lower_or_digit(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

bool is_in_key(char c) { return is_lower_or_digit(c) || c == '-' || c == '.' || c == '_' || c == '/'; }

bool is_in_value(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; }

}  // namespace

bool valid_label_key(absl::string_view key) {
  return !key.empty() && key.size() <= kMaxLength && absl::ascii_islower(key.front()) &&
         is_lower_or_digit(key.back()) && std::all_of(key.begin(), key.end(), is_in_key);
}

bool valid_label_value(absl::string_view value) {
  return value.size() <= kMaxLength && std::all_of(value.begin(), value.end(), is_in_value);
}

absl::Status check_label_count(const JobLabels& labels, const std::string& field) {
  if (labels.size() <= kMaxLabels) return absl::OkStatus();
  return rpc::bad_request("LABELS_INVALID",
                          {{field, absl::StrCat("are ", labels.size(), ", but a job has at most ", kMaxLabels)}});
}

absl::Status check_labels(const JobLabels& labels, const std::string& field) {
  std::vector<rpc::FieldViolation> violations;
  for (const auto& [key, value] : labels) {
    const std::string name = absl::StrCat(field, ".", key);
    if (!valid_label_key(key)) {
      violations.push_back({name, absl::StrCat("the key '", key, "' must match [a-z]([-a-z0-9._/]{0,61}[a-z0-9])?")});
    }
    if (!valid_label_value(value)) {
      violations.push_back({name, absl::StrCat("is '", value, "', but must match [A-Za-z0-9._-]{0,63}")});
    }
  }
  if (!violations.empty()) return rpc::bad_request("LABELS_INVALID", violations);
  return check_label_count(labels, field);
}

}  // namespace titan::core
