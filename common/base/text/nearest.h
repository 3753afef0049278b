#pragma once

// What a misspelt word most likely means: one rule for keys, values, verbs, flags, names and paths.

#include <string>
#include <string_view>
#include <vector>

namespace titan {

// The candidate that `given` most likely misspells (case is ignored) or is another name of ("bf16" of "bfloat16"), or
// "" when none is near.
std::string nearest(const std::string& given, const std::vector<std::string>& candidates);

// The key of `keys` ("section.key") that was probably meant, or "": the same name in the one section that has it or in
// one that is spelt alike, else the nearest name in the same section or in such a one.
std::string nearest_key(const std::string& key, const std::vector<std::string>& keys);

// "; did you mean 'X'?" with the nearest candidate, or nothing when none is near.
std::string did_you_mean(const std::string& given, const std::vector<std::string>& candidates);

// Section and last part of "training.dataloader.order".
std::string section_of(std::string_view key);
std::string name_of(std::string_view key);

}  // namespace titan
