#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::tokenizer_files {

// Parses `text`, the content of the file `path`, as a JSON object. Errors: InvalidArgument, which names the file.
absl::StatusOr<nlohmann::json> parse_object(const std::string& path, const std::string& text);

// Reads a folder's tokenizer_config.json; an empty object when there is none. Errors: InvalidArgument, which names the
// file.
absl::StatusOr<nlohmann::json> read_tokenizer_config(const std::string& folder);

// The chat templates of a tokenizer, not parsed.
struct ChatTemplateText {
  std::string path;  // Their location, for messages.
  std::string plain;
  std::optional<std::string> with_tools;
};
// Returns the template in chat_template.jinja, else those in `config` (read_tokenizer_config). Errors: NotFound, which
// says where to put one.
absl::StatusOr<ChatTemplateText> find_chat_template(const std::string& folder, const nlohmann::json& config);

}  // namespace titan::tokenizer_files
