#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace titan::topology {

using CpuSet = std::set<int>;  // The kernel's numbers of logical CPUs.

// The kernel's notation: "0-3,8,10-11", with or without a line end; "" is the empty set. None: it is something else.
std::optional<CpuSet> parse_cpu_list(std::string_view text);
std::string to_text(const CpuSet& cpus);

CpuSet intersection(const CpuSet& one, const CpuSet& other);
bool contains(const CpuSet& whole, const CpuSet& part);

}  // namespace titan::topology
