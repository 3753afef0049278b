#pragma once

#include <CLI/CLI.hpp>

namespace titan::tools {

// Adds "titan-data encode-images" to the help.
void add_encode_images(CLI::App& program);

// Runs it: replaces this program by titan-generate next to it, which links LibTorch. Returns only if that fails, with
// the exit code.
int start_encode_images(char** argv);

}  // namespace titan::tools
