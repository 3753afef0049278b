#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// Adds "titan-data tokenize", which makes a token index of text.
void add_tokenize(CLI::App& program);

}  // namespace titan::tools
