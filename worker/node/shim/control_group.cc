#include "worker/node/shim/control_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

using nlohmann::json;
constexpr char kLeaf[] = "titan-worker";

// Does not use host::replace_file(): these files cannot be replaced.
absl::Status say_to(const std::string& path, const std::string& text) {
  const host::Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return errno_status(errno, absl::StrCat("write ", text, " to ", path));
  return absl::OkStatus();
}

bool may_make_groups(const std::string& folder) { return ::access(folder.c_str(), W_OK) == 0; }

bool is_delegated(const std::string& folder) {
  for (const char* mark : {"user.delegate", "trusted.delegate"}) {
    char value = 0;
    if (::getxattr(folder.c_str(), mark, &value, 1) == 1 && value == '1') return true;
  }
  return false;
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Returns the path in the line "ID:controllers:/path" of /proc/self/cgroup; empty for "/", "?" if there is no such
// line.
std::string own_path(const std::string& lines, absl::string_view controller) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool is_it = controller.empty()
                           ? line.substr(0, 3) == "0::"
                           : absl::StrContains(absl::StrCat(",", parts[1], ","), absl::StrCat(",", controller, ","));
    if (is_it) return std::string(parts[2] == "/" ? "" : parts[2]);
  }
  return "?";
}

absl::StatusOr<GroupHome> open_home(const std::string& folder) {
  TITAN_RETURN_IF_ERROR(say_to(folder + "/cgroup.subtree_control", "+memory +pids"));
  return GroupHome{folder, /*unified=*/true};
}

absl::StatusOr<GroupHome> unified_home(const std::string& own, bool is_service) {
  const std::string above = parent_of(own);
  if (is_delegated(above) && may_make_groups(above)) return open_home(above);  // This process is in a leaf already.
  if (!is_delegated(own) || !may_make_groups(own))
    return absl::FailedPreconditionError(absl::StrCat(own, " is not delegated to this user (systemd: Delegate=yes)"));
  if (is_service)
    return absl::FailedPreconditionError(
        "a service needs a leaf cgroup below its own (DelegateSubgroup=, systemd 254 or newer)");
  const std::string leaf = absl::StrCat(own, "/", kLeaf);
  if (::mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) return errno_status(errno, absl::StrCat("create ", leaf));
  TITAN_RETURN_IF_ERROR(say_to(leaf + "/cgroup.procs", absl::StrCat(::getpid())));
  absl::StatusOr<GroupHome> home = open_home(own);
  // The group contains other processes: undo the move.
  if (!home.ok()) (void)say_to(own + "/cgroup.procs", absl::StrCat(::getpid()));
  return home;
}

}  // namespace

absl::StatusOr<GroupHome> find_group_home(const GroupPlaces& places) {
  TITAN_ASSIGN_OR_RETURN(const std::string lines, host::read_file(places.own));
  if (::access((places.mount + "/cgroup.controllers").c_str(), F_OK) == 0) {
    const std::string own = own_path(lines, "");
    if (own != "?") return unified_home(places.mount + own, places.is_service);
  }
  const std::string own = own_path(lines, "memory");
  // In a container the mount's root may be this process's group.
  for (const std::string& folder : {absl::StrCat(places.mount, "/memory", own), places.mount + "/memory"}) {
    const bool is_one = ::access((folder + "/memory.limit_in_bytes").c_str(), F_OK) == 0;
    if (own != "?" && is_one && may_make_groups(folder)) return GroupHome{folder, /*unified=*/false};
  }
  return absl::FailedPreconditionError("this user cannot create groups below any control group of this process");
}

json to_json(const ControlGroup& group) {
  return {{"folder", group.folder}, {"unified", group.unified}, {"limit_bytes", group.limit_bytes}};
}

ControlGroup group_from_json(const json& from) {
  return {from.at("folder").get<std::string>(), from.at("unified").get<bool>(), from.at("limit_bytes").get<int64_t>()};
}

absl::Status make_group(const ControlGroup& group) {
  if (::mkdir(group.folder.c_str(), 0755) != 0 && errno != EEXIST)
    return errno_status(errno, absl::StrCat("create ", group.folder));
  if (group.limit_bytes <= 0) return absl::OkStatus();
  const std::string limit = absl::StrCat(group.limit_bytes);
  TITAN_RETURN_IF_ERROR(say_to(group.folder + (group.unified ? "/memory.max" : "/memory.limit_in_bytes"), limit));
  // Without a limit on swap the memory limit would have no effect. The file is missing where swap is not counted.
  (void)say_to(group.folder + (group.unified ? "/memory.swap.max" : "/memory.memsw.limit_in_bytes"),
               group.unified ? "0" : limit);
  return absl::OkStatus();
}

host::Descriptor group_entrance(const ControlGroup& group) {
  return host::Descriptor(group ? ::open((group.folder + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC) : -1);
}

absl::StatusOr<int64_t> memory_kills(const ControlGroup& group) {
  const std::string path = group.folder + (group.unified ? "/memory.events" : "/memory.oom_control");
  TITAN_ASSIGN_OR_RETURN(const std::string text, host::read_file(path));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t kills = 0;
    if (absl::StartsWith(line, "oom_kill ") && absl::SimpleAtoi(line.substr(9), &kills)) return kills;
  }
  return absl::NotFoundError(absl::StrCat(path, " counts no kills"));
}

std::vector<pid_t> group_processes(const std::string& folder) {
  std::vector<pid_t> found;
  std::istringstream pids(host::read_file(folder + "/cgroup.procs").value_or(""));
  for (pid_t pid = 0; pids >> pid;) {
    if (pid > 0) found.push_back(pid);
  }
  return found;
}

int kill_group(const std::string& folder) {
  const std::vector<pid_t> found = group_processes(folder);
  for (const pid_t pid : found) ::kill(pid, SIGKILL);
  return static_cast<int>(found.size());
}

bool remove_group(const std::string& folder) { return ::rmdir(folder.c_str()) == 0 || errno == ENOENT; }

namespace {

// Returns the value of the line "oom_kill N", or -1 without one.
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
          "/sys/fs/cgroup/memory/memory.oom_control");  // In a container this process's group may be the mount's root.
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
