#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace titan::config {

// The allowed value that was probably meant, or "".
std::string nearest_value(const std::string& value, const std::vector<std::string>& allowed);

// The key of `keys` ("section.key") that was probably meant, or "": the same name in another section, else the nearest
// name in the same section, else the nearest full name.
std::string nearest_key(const std::string& key, const std::vector<std::string>& keys);

// Section and last part of "training.dataloader.order".
std::string section_of(std::string_view key);
std::string name_of(std::string_view key);

}  // namespace titan::config
