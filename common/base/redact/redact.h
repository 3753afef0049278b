#pragma once

// Takes secrets out of what is handed to somebody: by the names of settings, since nothing else tells them apart. Names
// that only look like it lose their values, too.

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace titan::redact {

// In place of a secret.
inline constexpr char kLeftOut[] = "(left out)";

// Whether one of the name's words ends in token, secret, key, password or another word for such a thing, as in
// WANDB_API_KEY, hf_token and apiKeys; not in tokenizer_path.
bool is_secret(absl::string_view name);

// Values of NAME=VALUE and NAME: VALUE where the name is a secret's, and passwords in URLs.
std::string text(absl::string_view text);

// Members by their names, wherever they are, and every text as text() does. Numbers stay unless the name's last word is
// a secret's (max_tokens does not hide how many, api_key does).
void values(nlohmann::ordered_json& document);
// Every text as text() does, and nothing by the name of a member: for documents of which all names are known.
void texts(nlohmann::ordered_json& document);

}  // namespace titan::redact
