#include "common/base/text/project_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace titan::text {

bool is_project_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace titan::text
