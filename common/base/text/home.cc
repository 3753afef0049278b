#include "common/base/text/home.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"

namespace titan::text {
namespace {

constexpr size_t kEntryBytes = 16 * 1024;  // Buffer size for the strings of a user's entry.

std::optional<std::string> home_of(const std::string& user) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> texts(kEntryBytes);
  if (user.empty()) {
    getpwuid_r(getuid(), &entry, texts.data(), texts.size(), &found);
  } else {
    getpwnam_r(user.c_str(), &entry, texts.data(), texts.size(), &found);
  }
  if (found == nullptr || found->pw_dir == nullptr || *found->pw_dir == '\0') return std::nullopt;
  return found->pw_dir;
}

}  // namespace

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t slash = path.find('/');
  const std::string user = path.substr(1, slash == std::string::npos ? std::string::npos : slash - 1);
  const char* set = user.empty() ? std::getenv("HOME") : nullptr;
  const std::optional<std::string> home =
      set != nullptr && *set != '\0' ? std::optional<std::string>(set) : home_of(user);
  return home ? *home + (slash == std::string::npos ? "" : path.substr(slash)) : path;
}

bool names_variable(const std::string& path) {
  for (size_t at = path.find('$'); at != std::string::npos; at = path.find('$', at + 1)) {
    if (at > 0 && path[at - 1] != '/') continue;
    const char next = at + 1 < path.size() ? path[at + 1] : '\0';
    if (next == '{' || next == '_' || absl::ascii_isalpha(static_cast<unsigned char>(next))) return true;
  }
  return false;
}

}  // namespace titan::text
