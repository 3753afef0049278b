#pragma once

#include <string_view>

// What there is, by name: a template that asks for anything else is refused before it is used.
namespace titan::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_function(std::string_view name);
bool is_method(std::string_view name);  // Of a text, a mapping or "loop".

}  // namespace titan::jinja
