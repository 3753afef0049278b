#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// titan-data decode: the text of tokens.
void add_decode(CLI::App& program);

}  // namespace titan::tools
