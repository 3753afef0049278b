#pragma once

#include <map>
#include <string>
#include <vector>

namespace titan::host {

// What whoever looks for a fault asks first of the machine and of this process there: system, cores, load, memory,
// control group with its limits, limits of the process, time, and what is free where `folders` lie. What cannot be read
// is left out.
std::map<std::string, std::string> facts(const std::vector<std::string>& folders);

}  // namespace titan::host
