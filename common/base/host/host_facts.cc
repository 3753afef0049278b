#include "common/base/host/host_facts.h"

#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace titan::host {

std::string hostname() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::filesystem::path folder_of_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

namespace {

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return std::string(absl::StripSuffix(text.str(), "\n"));
}

// Returns the lines of /proc/meminfo that show how much memory is free.
std::string memory() {
  std::string found;
  for (const absl::string_view line : absl::StrSplit(read("/proc/meminfo"), '\n')) {
    for (const absl::string_view wanted : {"MemTotal:", "MemAvailable:", "SwapTotal:", "SwapFree:"}) {
      if (absl::StartsWith(line, wanted)) absl::StrAppend(&found, found.empty() ? "" : "\n", line);
    }
  }
  return found;
}

std::string system_text() {
  utsname name{};
  if (::uname(&name) != 0) return "";
  return absl::StrCat(name.sysname, " ", name.nodename, " ", name.release, " ", name.version, " ", name.machine);
}

std::string free_in(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return "";
  const auto bytes = [&disk](auto blocks) { return blocks * disk.f_frsize; };
  return absl::StrCat(bytes(disk.f_bavail), " of ", bytes(disk.f_blocks), " bytes free, ", disk.f_favail, " of ",
                      disk.f_files, " inodes");
}

}  // namespace

std::map<std::string, std::string> facts(const std::vector<std::string>& folders) {
  std::map<std::string, std::string> all = {
      {"system", system_text()},
      {"time", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
      {"cores", absl::StrCat(std::thread::hardware_concurrency())},
      {"load", read("/proc/loadavg")},
      {"uptime_seconds", read("/proc/uptime")},
      {"memory", memory()},
      {"limits", read("/proc/self/limits")},
      {"user", absl::StrCat(::geteuid())},
  };
  const std::string group = read("/proc/self/cgroup");
  all["cgroup"] = group;
  if (absl::string_view path = group; absl::ConsumePrefix(&path, "0::")) {
    for (const char* limit : {"memory.max", "memory.current", "cpu.max", "pids.max"})
      all[absl::StrCat("cgroup ", limit)] = read(absl::StrCat("/sys/fs/cgroup", path, "/", limit));
  }
  for (const std::string& folder : folders) all[absl::StrCat("disk ", folder)] = free_in(folder);
  for (auto fact = all.begin(); fact != all.end();) fact = fact->second.empty() ? all.erase(fact) : std::next(fact);
  return all;
}

}  // namespace titan::host
