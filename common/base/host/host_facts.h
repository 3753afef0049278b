#pragma once

// Reports facts about this machine and the running program: the host name, the program's folder, and what a diagnosis
// needs first.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace titan::host {

// Returns this machine's name from gethostname(2), or "" when that fails.
std::string hostname();

// Returns the folder that contains the running program's file, links resolved. Empty when the system does not report
// it.
std::filesystem::path folder_of_program();

// Returns what a diagnosis needs first about the machine and this process: system, time, cores, load, uptime, memory,
// limits of the process, effective user id, control group and its limits, and the free space at `folders`. Values that
// cannot be read are left out.
std::map<std::string, std::string> facts(const std::vector<std::string>& folders);

}  // namespace titan::host
