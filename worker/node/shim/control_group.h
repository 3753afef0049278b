#pragma once

// Creates the control groups (cgroups) of ranks and counts the kills of the kernel's out-of-memory killer in them. The
// ranks of an attempt on a node have their own group: it shows whose memory ran out, it can limit their total memory,
// and it finds every process that they started.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"

namespace titan::shim {

// Parent folder of the groups.
struct GroupHome {
  std::string folder;
  bool unified = false;  // Control groups version 2; otherwise the memory hierarchy of version 1.
};

// Paths to inspect; tests replace them.
struct GroupPlaces {
  std::string own = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
  bool is_service = false;  // A systemd service: systemd must be able to start this process again in its present group.
};

// Finds where groups can be created. Version 1: below this process's own group. Version 2: below the group that was
// delegated to it, where only leaves may contain processes. The process is in a leaf already (systemd's
// DelegateSubgroup=), or moves to the new leaf "titan-worker", except in a service, which systemd could not start
// again. Errors: FailedPrecondition and system errors, with what to do.
absl::StatusOr<GroupHome> find_group_home(const GroupPlaces& places);

struct ControlGroup {
  std::string folder;  // Empty: none.
  bool unified = false;
  int64_t limit_bytes = 0;  // For all memory in the group. 0: no limit.

  explicit operator bool() const { return !folder.empty(); }
};

nlohmann::json to_json(const ControlGroup& group);
// Throws nlohmann::json::exception.
ControlGroup group_from_json(const nlohmann::json& from);

// Creates the group with its limit; it may exist already. Errors: those of the system.
absl::Status make_group(const ControlGroup& group);
// Returns a descriptor: a process that writes "0" to it enters the group. Empty without a group, or if it cannot be
// opened.
host::Descriptor group_entrance(const ControlGroup& group);
// Returns the number of out-of-memory kills in the group. Errors: NotFound if the group does not count them; those of
// reading.
absl::StatusOr<int64_t> memory_kills(const ControlGroup& group);
// Returns the pids of the processes in the group.
std::vector<pid_t> group_processes(const std::string& folder);
// Sends SIGKILL to all processes of the group and returns their number.
int kill_group(const std::string& folder);
// Returns false while the group contains processes, true if it does not exist.
bool remove_group(const std::string& folder);

// Counts kills of the kernel's out-of-memory killer: in the ranks' control group if they have one, else in this
// process's memory cgroup (v2 or v1), else on the whole machine. A rank that was ended by SIGKILL while the count grew
// ran out of memory.
class OutOfMemoryCounter {
 public:
  explicit OutOfMemoryCounter(const ControlGroup& group);
  // Returns the kills so far; 0 if nothing on this machine counts them.
  int64_t read() const;

 private:
  ControlGroup group_;
  std::string path_;
};

}  // namespace titan::shim
