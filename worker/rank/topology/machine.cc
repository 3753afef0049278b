#include "worker/rank/topology/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::topology {
namespace {

constexpr int kMaxCpus = 1 << 16;

}  // namespace

std::optional<CpuSet> parse_cpu_list(std::string_view text) {
  CpuSet cpus;
  const absl::string_view list = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  if (list.empty()) return cpus;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return std::nullopt;
    int last = first;
    if (part.size() > ends.first.size() && !absl::SimpleAtoi(ends.second, &last)) return std::nullopt;
    if (first < 0 || last < first || last >= kMaxCpus) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::string to_text(const CpuSet& cpus) {
  std::string text;
  for (auto begin = cpus.begin(); begin != cpus.end();) {
    auto last = begin;
    while (std::next(last) != cpus.end() && *std::next(last) == *last + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", *begin);
    if (last != begin) absl::StrAppend(&text, "-", *last);
    begin = std::next(last);
  }
  return text;
}

CpuSet intersection(const CpuSet& one, const CpuSet& other) {
  CpuSet both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::inserter(both, both.end()));
  return both;
}

bool contains(const CpuSet& whole, const CpuSet& part) {
  return std::includes(whole.begin(), whole.end(), part.begin(), part.end());
}

namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

std::optional<CpuSet> read_cpus(const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  return text ? parse_cpu_list(*text) : std::nullopt;
}

// Returns the CPUs of the group or of its nearest ancestor that lists them: only groups with the cpuset controller do.
std::optional<CpuSet> cpus_of_group(const std::string& mount, std::string group, const char* file) {
  for (;;) {
    if (auto cpus = read_cpus(absl::StrCat(mount, group, "/", file)); cpus && !cpus->empty()) return cpus;
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return std::nullopt;
    group.resize(slash);
  }
}

// Lines of /proc/self/cgroup are "0::/path" for version 2 and "7:cpuset:/path" for version 1.
std::optional<CpuSet> cpus_of_control_group(const std::string& root) {
  const std::string text = read_text(root + "/proc/self/cgroup").value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    std::optional<CpuSet> cpus;
    if (std::find(controllers.begin(), controllers.end(), "cpuset") != controllers.end()) {
      cpus = cpus_of_group(root + "/sys/fs/cgroup/cpuset", fields[2], "cpuset.effective_cpus");
    } else if (fields[1].empty()) {
      cpus = cpus_of_group(root + "/sys/fs/cgroup", fields[2], "cpuset.cpus.effective");
    }
    if (cpus) return cpus;
  }
  return std::nullopt;
}

std::vector<NumaNode> read_nodes(const std::string& root, const CpuSet& online) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(root + "/sys/devices/system/node", error)) {
    const std::string name = item.path().filename().string();
    int id = 0;
    if (!absl::StartsWith(name, "node") || !absl::SimpleAtoi(name.substr(4), &id)) continue;
    const CpuSet cpus = intersection(read_cpus(item.path().string() + "/cpulist").value_or(CpuSet{}), online);
    if (!cpus.empty()) nodes.push_back({id, cpus});  // Other nodes have only memory.
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  if (nodes.empty() && !online.empty()) nodes.push_back({0, online});
  return nodes;
}

}  // namespace

Machine read_machine(const std::string& root) {
  const std::string cpus = root + "/sys/devices/system/cpu";
  Machine machine;
  machine.online = read_cpus(cpus + "/online").value_or(CpuSet{});
  machine.allowed = intersection(cpus_of_control_group(root).value_or(machine.online), machine.online);
  machine.nodes = read_nodes(root, machine.online);
  for (const int cpu : machine.online) {
    const auto siblings = read_cpus(absl::StrCat(cpus, "/cpu", cpu, "/topology/thread_siblings_list"));
    if (siblings && siblings->contains(cpu)) machine.core[cpu] = *siblings->begin();
  }
  return machine;
}

std::optional<int> node_of_device(const std::string& pci_address, const std::string& root) {
  const std::string path =
      absl::StrCat(root, "/sys/bus/pci/devices/", absl::AsciiStrToLower(pci_address), "/numa_node");
  int node = -1;
  if (!absl::SimpleAtoi(read_text(path).value_or(""), &node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace titan::topology
