#include "worker/node/shim/out_of_memory.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"

namespace titan::shim {
namespace {

// Value of the line "oom_kill N"; -1 without one.
int64_t oom_kills(const std::string& path) {
  const absl::StatusOr<std::string> text = host::read_file(path);
  if (!text.ok()) return -1;
  constexpr std::string_view kKey = "oom_kill ";
  for (size_t line = 0; line < text->size();) {
    if (text->compare(line, kKey.size(), kKey) == 0) return std::atoll(text->c_str() + line + kKey.size());
    const size_t end = text->find('\n', line);
    if (end == std::string::npos) break;
    line = end + 1;
  }
  return -1;
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  const absl::StatusOr<std::string> groups = host::read_file("/proc/self/cgroup");
  for (size_t line = 0; groups.ok() && line < groups->size();) {
    const size_t end = std::min(groups->find('\n', line), groups->size());
    const std::string text = groups->substr(line, end - line);  // "ID:controllers:/path"
    const size_t second = text.find(':', text.find(':') + 1);
    const std::string path = second == std::string::npos ? "" : text.substr(second + 1);
    if (text.compare(0, 3, "0::") == 0) {
      paths.push_back(absl::StrCat("/sys/fs/cgroup", path, "/memory.events"));
    } else if (text.find(":memory:") != std::string::npos) {
      paths.push_back(absl::StrCat("/sys/fs/cgroup/memory", path, "/memory.oom_control"));
      paths.push_back(
          "/sys/fs/cgroup/memory/memory.oom_control");  // In a container, where the own group is the mount's root.
    }
    line = end + 1;
  }
  paths.push_back("/proc/vmstat");
  return paths;
}

}  // namespace

OutOfMemoryCounter::OutOfMemoryCounter(const ControlGroup& group) : group_(group) {
  if (group_ && !memory_kills(group_).ok()) group_ = {};
  if (group_) return;
  for (const std::string& path : candidates()) {
    if (oom_kills(path) < 0) continue;
    path_ = path;
    return;
  }
}

int64_t OutOfMemoryCounter::read() const {
  if (group_) return memory_kills(group_).value_or(0);
  return path_.empty() ? 0 : std::max<int64_t>(0, oom_kills(path_));
}

}  // namespace titan::shim
