#include "common/base/version/version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "build_manifest.h"  // Made by the build.

namespace titan {

std::string version() { return TITAN_VERSION; }

std::string revision() { return kRevision; }

std::vector<std::pair<std::string, std::string>> build_manifest() {
  return {std::begin(kManifest), std::end(kManifest)};
}

std::string version_line(const std::string& program) {
  const std::string commit = revision();
  return absl::StrCat(program, " ", version(), commit.empty() ? "" : absl::StrCat(" (", commit, ")"));
}

std::string version_text(const std::string& program, const std::vector<std::string>& words) {
  std::string text = version_line(program);
  if (std::find(words.begin(), words.end(), "--verbose") == words.end()) return text;
  for (const auto& [name, value] : build_manifest()) absl::StrAppendFormat(&text, "\n  %-14s %s", name, value);
  return text;
}

}  // namespace titan
