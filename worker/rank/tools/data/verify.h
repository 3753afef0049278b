#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// Adds "titan-data verify", which reads a token index, or Megatron-LM's files, and checks everything that can be
// checked.
void add_verify(CLI::App& program);

}  // namespace titan::tools
