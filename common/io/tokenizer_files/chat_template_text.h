#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::tokenizer_files {

// The JSON object that the file `path` holds as `text`. InvalidArgument, names the file.
absl::StatusOr<nlohmann::json> parse_object(const std::string& path, const std::string& text);

// A folder's tokenizer_config.json; an empty object where there is none. InvalidArgument, names the file.
absl::StatusOr<nlohmann::json> read_tokenizer_config(const std::string& folder);

// The chat templates of a tokenizer, not parsed.
struct ChatTemplateText {
  std::string path;  // Where they are, for people.
  std::string plain;
  std::optional<std::string> with_tools;
};
// Those in chat_template.jinja, else those of `config` (read_tokenizer_config). NotFound says where to put one.
absl::StatusOr<ChatTemplateText> find_chat_template(const std::string& folder, const nlohmann::json& config);

}  // namespace titan::tokenizer_files
