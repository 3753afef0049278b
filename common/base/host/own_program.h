#pragma once

#include <filesystem>

namespace titan::host {

// The folder that the running program's file lies in, links followed; empty where the system does not tell.
std::filesystem::path folder_of_program();

}  // namespace titan::host
