#include "worker/node/stacks/mappings.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/file_io.h"

namespace titan::stacks {
namespace {

host::Descriptor open_plain_file(const std::string& path) {
  const host::Descriptor place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!place || ::fstat(place.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return host::Descriptor(::open(absl::StrCat("/proc/self/fd/", place.get()).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

std::vector<Mapping> mappings_of(pid_t pid) {
  std::vector<Mapping> mappings;
  const absl::StatusOr<std::string> text = host::read_file(absl::StrCat("/proc/", pid, "/maps"));
  if (!text.ok()) return mappings;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    Mapping mapping;
    int path_at = 0;
    const std::string copy(line);
    if (std::sscanf(copy.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*x %x:%x %" SCNu64 " %n", &mapping.begin, &mapping.end,
                    &mapping.major, &mapping.minor, &mapping.inode, &path_at) < 5) {
      continue;
    }
    if (path_at > 0) mapping.path = copy.substr(static_cast<size_t>(path_at));
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

host::Descriptor open_mapped(pid_t pid, const Mapping& mapping) {
  if (mapping.inode == 0) return {};
  host::Descriptor file = open_plain_file(
      absl::StrCat("/proc/", pid, "/map_files/", absl::Hex(mapping.begin), "-", absl::Hex(mapping.end)));
  return file ? std::move(file) : open_plain_file(mapping.path);
}

}  // namespace titan::stacks
