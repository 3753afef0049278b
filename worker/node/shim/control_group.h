#pragma once

// Makes the control groups of ranks, and counts in them the kills of the kernel's out-of-memory killer. An attempt's
// ranks on a node have a group of their own, so that it is known whose memory ran out, what they take together can be
// limited, and whatever they have started is found at their end.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"

namespace titan::shim {

// Where groups are made.
struct GroupHome {
  std::string folder;
  bool unified = false;  // Version 2 of control groups; else the memory hierarchy of version 1.
};

// What to look at; tests stand in for it.
struct GroupPlaces {
  std::string own = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
  bool is_service = false;  // Of systemd, which starts this process again in the group in which it is now.
};

// Version 1: below this process's own group. Version 2: below the group that was delegated to it, where nothing may run
// but in leaves: it is in a leaf already (systemd's DelegateSubgroup=), or goes into one, "titan-worker", now, unless
// systemd started it, which could not start it again. Errors: FailedPrecondition and the system's, saying what to do.
absl::StatusOr<GroupHome> find_group_home(const GroupPlaces& places);

struct ControlGroup {
  std::string folder;  // Empty: none.
  bool unified = false;
  int64_t limit_bytes = 0;  // Of all memory in it; 0: no limit.

  explicit operator bool() const { return !folder.empty(); }
};

nlohmann::json to_json(const ControlGroup& group);
// Throws nlohmann::json::exception.
ControlGroup group_from_json(const nlohmann::json& from);

absl::Status make_group(const ControlGroup& group);
// To write "0" to: whoever does is in the group then.
host::Descriptor group_entrance(const ControlGroup& group);
// Kills for want of memory that hit a process of the group. Errors: it does not say.
absl::StatusOr<int64_t> memory_kills(const ControlGroup& group);
std::vector<pid_t> group_processes(const std::string& folder);
// SIGKILL to all in it; how many there were.
int kill_group(const std::string& folder);
// False while something is in it. True when there is none.
bool remove_group(const std::string& folder);

// Counts kills of the kernel's out-of-memory killer: in the ranks' own control group if they have one, else in this
// process's memory cgroup (v2 or v1), or on the whole machine when the cgroup does not say. A rank that SIGKILL ended
// while the count grew ran out of memory.
class OutOfMemoryCounter {
 public:
  explicit OutOfMemoryCounter(const ControlGroup& group);
  // Kills so far; 0 when nothing on this machine counts them.
  int64_t read() const;

 private:
  ControlGroup group_;
  std::string path_;
};

}  // namespace titan::shim
