#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace titan::pickle {

// Returns "module.name" of a class or function that checkpoints name, as a static text; empty for any other.
std::string_view known_name(std::string_view module, std::string_view name);

// Returns the value of an enum member that checkpoints name; no value for any other class or member.
std::optional<std::int64_t> known_enum_value(std::string_view enum_class, std::string_view member);

}  // namespace titan::pickle
