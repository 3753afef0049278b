#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// titan-data verify: reads a token index, or Megatron-LM's files, and checks whatever can be checked.
void add_verify(CLI::App& program);

}  // namespace titan::tools
