#pragma once

// Removes secrets from text and JSON that are handed to others. Goes by the names of settings, because nothing else
// identifies secrets, so settings whose names only look secret lose their values too.

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace titan::redact {

// Replaces a secret.
inline constexpr char kLeftOut[] = "(left out)";

// Whether one of the name's words ends in token, secret, key, password or a similar word, as in WANDB_API_KEY, hf_token
// and apiKeys, but not in tokenizer_path.
bool is_secret(absl::string_view name);

// Replaces the values of NAME=VALUE and NAME: VALUE where the name is secret, and USER:PASSWORD in URLs.
std::string text(absl::string_view text);

// Replaces members with secret names at any depth, and secrets in every text as text() does. Null and booleans stay. A
// number stays unless the last word of its name is a secret word in the singular: max_tokens keeps its number, api_key
// does not.
void values(nlohmann::ordered_json& document);
// Applies text() to every text and ignores member names, for documents in which all names are known.
void texts(nlohmann::ordered_json& document);

}  // namespace titan::redact
