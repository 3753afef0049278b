#include "common/base/text/id.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace titan::text {

bool is_id(std::string_view id) {
  const auto is_part = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; };
  return !id.empty() && id.size() <= 63 && absl::ascii_islower(id.front()) && id.back() != '-' &&
         std::all_of(id.begin(), id.end(), is_part);
}

bool is_project_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace titan::text
