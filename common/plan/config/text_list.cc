#include "common/plan/config/text_list.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace titan::config {

std::optional<Complaint> read_text_list(const std::string& text, std::vector<std::string>& items) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  std::vector<std::string> found;
  if (absl::StartsWith(stripped, "[") && absl::EndsWith(stripped, "]")) {
    const nlohmann::json json = nlohmann::json::parse(stripped.begin(), stripped.end(), nullptr, false);
    const Complaint wrong{"stands in brackets but is not a JSON array of strings", R"(write '["a, b", "c"]', or a,b)"};
    if (!json.is_array()) return wrong;
    for (const nlohmann::json& item : json) {
      if (!item.is_string()) return wrong;
      found.push_back(item.get<std::string>());
    }
  } else {
    for (const absl::string_view piece : absl::StrSplit(text, ',')) {
      const std::string item(absl::StripAsciiWhitespace(piece));
      if (!item.empty()) found.push_back(item);
    }
  }
  items = std::move(found);
  return std::nullopt;
}

}  // namespace titan::config
