#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// Adds "titan-data chat": shows conversations as a job trains on them, and which of their tokens are labels.
void add_chat(CLI::App& program);

}  // namespace titan::tools
