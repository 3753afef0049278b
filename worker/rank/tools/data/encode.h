#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// titan-data encode: the tokens of texts.
void add_encode(CLI::App& program);

}  // namespace titan::tools
