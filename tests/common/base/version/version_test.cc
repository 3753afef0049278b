#include "common/base/version/version.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan {
namespace {

using testing::AnyOf;
using testing::IsSupersetOf;
using testing::MatchesRegex;

std::map<std::string, std::string> facts() {
  const auto manifest = build_manifest();
  return {manifest.begin(), manifest.end()};
}

// Outside a git checkout the commit is unknown, and the version line has no revision.
TEST(VersionTest, CommitIsTheRevision) {
  const std::string commit = facts()["commit"];
  if (revision().empty()) {
    EXPECT_EQ(commit, "unknown");
    EXPECT_EQ(version_line("titanctl"), absl::StrCat("titanctl ", version()));
  } else {
    EXPECT_THAT(commit, AnyOf(revision(), absl::StrCat(revision(), ", modified")));
    EXPECT_EQ(version_line("titanctl"), absl::StrCat("titanctl ", version(), " (", revision(), ")"));
  }
}

// If CMake stopped finding a library's version, its value would be empty.
TEST(VersionTest, EveryFactHasAValue) {
  std::vector<std::string> names;
  for (const auto& [name, value] : build_manifest()) {
    names.push_back(name);
    EXPECT_NE(value, "") << name;
  }
  EXPECT_THAT(names, IsSupersetOf({"commit", "build type", "compiler", "CUDA", "LibTorch", "gRPC", "protobuf", "abseil",
                                   "OpenSSL", "SQLite", "curl", "zstd", "pcre2", "yaml-cpp"}));
  EXPECT_THAT(facts()["gRPC"], MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(VersionTest, VerboseTextIsTheLineAndTheManifest) {
  EXPECT_EQ(version_text("titanctl", {"--version"}), version_line("titanctl"));
  const std::string text = version_text("titanctl", {"--version", "--verbose"});
  EXPECT_TRUE(absl::StartsWith(text, version_line("titanctl") + "\n  commit  ")) << text;
  for (const auto& [name, value] : build_manifest()) EXPECT_TRUE(absl::StrContains(text, value)) << name;
  EXPECT_FALSE(absl::EndsWith(text, "\n"));
}

}  // namespace
}  // namespace titan
