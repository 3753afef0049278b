#include "common/io/storage/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::storage {
namespace {

// Returns "boot namespace", the same for all processes that see each other's ids; empty when unknown.
std::string process_view() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  char view[64];
  const ssize_t length = ::readlink("/proc/self/ns/pid", view, sizeof(view));
  if (boot.empty() || length <= 0) return "";
  return absl::StrCat(boot, " ", std::string(view, static_cast<size_t>(length)));
}

// Returns the start time in the kernel's ticks; "" for a zombie; nothing when the process is not visible.
std::optional<std::string> process_start(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // The name may contain spaces.
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty());
  if (fields.size() < 20) return std::nullopt;
  return fields[0] == "Z" || fields[0] == "X" ? "" : fields[19];  // Field 22, where the PID is field 1.
}

}  // namespace

std::string process_identity() {
  const std::string view = process_view(), pid = absl::StrCat(::getpid());
  const std::optional<std::string> start = process_start(pid);
  return view.empty() || !start ? "" : absl::StrCat(view, " ", pid, " ", *start);
}

bool process_has_ended(const std::string& identity) {
  const std::vector<std::string> parts = absl::StrSplit(identity, ' ');
  const std::string view = process_view();
  if (parts.size() != 4 || view.empty() || !absl::StartsWith(identity, view + " ")) return false;
  if (const std::optional<std::string> start = process_start(parts[2])) return *start != parts[3];
  pid_t pid = 0;  // /proc may hide other users' processes.
  return absl::SimpleAtoi(parts[2], &pid) && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace titan::storage
