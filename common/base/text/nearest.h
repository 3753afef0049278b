#pragma once

// Suggests what a misspelled word most likely means: one rule for keys, values, verbs, flags, names and paths.

#include <string>
#include <string_view>
#include <vector>

namespace titan {

// Returns the candidate that `given` most likely misspells (ignoring case) or is a synonym of ("bf16" of "bfloat16"),
// or "" when none is near.
std::string nearest(const std::string& given, const std::vector<std::string>& candidates);

// Returns the key of `keys` ("section.key") that was probably meant, or "". It prefers the same name in the only
// section that has it or in a section spelled alike, else the nearest name in the same section or in one spelled alike.
std::string nearest_key(const std::string& key, const std::vector<std::string>& keys);

// Returns "; did you mean 'X'?" with the nearest candidate, or "" when none is near.
std::string did_you_mean(const std::string& given, const std::vector<std::string>& candidates);

// Return the section and the last part of a key: "training.dataloader" and "order" of "training.dataloader.order".
std::string section_of(std::string_view key);
std::string name_of(std::string_view key);

}  // namespace titan
