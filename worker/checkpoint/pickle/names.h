#pragma once

#include <string>
#include <string_view>

namespace titan::pickle {

// "module.name" of a class or function that checkpoints name, as a text that lives for ever; empty for any other.
std::string_view known_name(std::string_view module, std::string_view name);

}  // namespace titan::pickle
