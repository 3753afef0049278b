#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// titan-data tokenize: a token index of text.
void add_tokenize(CLI::App& program);

}  // namespace titan::tools
