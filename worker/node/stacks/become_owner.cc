#include "worker/node/stacks/become_owner.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"

namespace titan::stacks {
namespace {

// Returns the second number of "Uid:\treal\teffective\t..." in /proc/PID/status, or -1 without one.
int64_t effective(const std::string& status, const std::string& line) {
  int64_t real = -1, effective = -1;
  const size_t at = status.find(absl::StrCat("\n", line, ":"));
  if (at == status.npos) return -1;
  const char* const numbers = status.c_str() + at + line.size() + 2;
  return std::sscanf(numbers, "%" SCNd64 "%" SCNd64, &real, &effective) == 2 ? effective : -1;
}

bool only_root_traces() {
  const absl::StatusOr<std::string> yama = host::read_file("/proc/sys/kernel/yama/ptrace_scope");
  return yama.ok() && *yama >= "2";
}

// Keeps or drops the capability for /proc/PID/map_files. A kernel before 5.9 grants it only to root.
bool keep(bool finding_of_files) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3] = {};
  if (finding_of_files) {
    __user_cap_data_struct& half = rights[CAP_TO_INDEX(CAP_CHECKPOINT_RESTORE)];
    half.effective = half.permitted = CAP_TO_MASK(CAP_CHECKPOINT_RESTORE);
  }
  return ::syscall(SYS_capset, &header, rights) == 0;
}

}  // namespace

bool become_owner_of(pid_t pid) {
  const absl::StatusOr<std::string> status = host::read_file(absl::StrCat("/proc/", pid, "/status"));
  if (::geteuid() != 0 || !status.ok() || only_root_traces()) return true;
  const int64_t user = effective(*status, "Uid"), group = effective(*status, "Gid");
  if (user <= 0 || group < 0) return true;
  const auto uid = static_cast<uid_t>(user);
  const auto gid = static_cast<gid_t>(group);
  return ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0 && ::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 &&
         ::setresuid(uid, uid, uid) == 0 && (keep(true) || keep(false)) &&
         ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

}  // namespace titan::stacks
