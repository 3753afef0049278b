#include "common/base/version/version.h"

#include "absl/strings/str_cat.h"
#include "revision.h"  // Made by the build.

namespace titan {

std::string version() { return TITAN_VERSION; }

std::string revision() { return TITAN_REVISION; }

std::string version_line(const std::string& program) {
  const std::string commit = revision();
  return absl::StrCat(program, " ", version(), commit.empty() ? "" : absl::StrCat(" (", commit, ")"));
}

}  // namespace titan
