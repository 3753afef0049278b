#pragma once

// Reads what the kernel reports about a machine's CPUs, as sets of CPUs, NUMA nodes and cores.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace titan::topology {

using CpuSet = std::set<int>;  // The kernel's numbers of logical CPUs.

// Parses the kernel's notation: "0-3,8,10-11", with or without a line end; "" is the empty set. None: not valid.
std::optional<CpuSet> parse_cpu_list(std::string_view text);
std::string to_text(const CpuSet& cpus);

CpuSet intersection(const CpuSet& one, const CpuSet& other);
bool contains(const CpuSet& whole, const CpuSet& part);

struct NumaNode {
  int id = 0;
  CpuSet cpus;  // Online CPUs.
};

// A machine's CPUs, as reported by the kernel.
struct Machine {
  CpuSet online;   // Empty: unknown.
  CpuSet allowed;  // Online CPUs that this process's control group may use; all if the group does not list any.
  std::vector<NumaNode> nodes;  // Nodes with CPUs, by id. Without NUMA: one node with all CPUs.
  std::map<int, int> core;      // By CPU: the lowest CPU of its core. No entry: the CPU is a core.
};

// Reads {root}/sys and {root}/proc; `root` is empty except in tests. Never fails: unreadable data is left out.
Machine read_machine(const std::string& root = "");

// Returns the NUMA node of a PCI device ("0000:3B:00.0", in any case). None: the kernel does not report it, as in many
// virtual machines.
std::optional<int> node_of_device(const std::string& pci_address, const std::string& root = "");

}  // namespace titan::topology
