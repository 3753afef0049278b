#pragma once

// Reports facts about this machine and the running program: the host name, the program's folder, and what a diagnosis
// needs first.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace titan::host {

// This machine's name as gethostname(2) gives it, or nothing where it gives none.
std::string hostname();

// The folder that the running program's file lies in, links followed; empty where the system does not tell.
std::filesystem::path folder_of_program();

// What a diagnosis needs first of the machine and of this process: system, cores, load, memory, control group with its
// limits, limits of the process, time, and the free space where `folders` are. What cannot be read is left out.
std::map<std::string, std::string> facts(const std::vector<std::string>& folders);

}  // namespace titan::host
