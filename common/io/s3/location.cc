#include "common/io/s3/location.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace titan::s3 {
namespace {

constexpr absl::string_view kScheme = "s3://";
constexpr size_t kMaxKeyLength = 900;  // A store accepts 1024 bytes; some are for the names in a step.

bool is_bucket(absl::string_view name) {
  const auto fits = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.'; };
  return name.size() >= 3 && name.size() <= 63 && std::all_of(name.begin(), name.end(), fits) &&
         absl::ascii_isalnum(name.front()) && absl::ascii_isalnum(name.back()) && !absl::StrContains(name, "..");
}

// Rejects keys that a proxy or a client might change.
bool is_key(absl::string_view key) {
  if (key.size() > kMaxKeyLength) return false;
  if (!std::all_of(key.begin(), key.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; })) return false;
  for (const absl::string_view part : absl::StrSplit(key, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace

bool is_location(std::string_view path) { return path.starts_with("s3://"); }

absl::StatusOr<Location> parse_location(const std::string& path) {
  absl::string_view rest = path;
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' ", what, ": write s3://BUCKET/FOLDER"));
  };
  if (!absl::ConsumePrefix(&rest, kScheme)) return bad("is not a location in an object store");
  absl::ConsumeSuffix(&rest, "/");
  const size_t slash = rest.find('/');
  const absl::string_view bucket = rest.substr(0, slash);
  const absl::string_view key = slash == rest.npos ? absl::string_view() : rest.substr(slash + 1);
  if (!is_bucket(bucket)) return bad("names no valid bucket (3 to 63 lower-case letters, digits, '-' and '.')");
  if (!key.empty() && !is_key(key)) return bad("has an invalid folder name (no empty part, '.' or '..')");
  return Location{std::string(bucket), std::string(key)};
}

std::string to_text(const Location& location) {
  return absl::StrCat(kScheme, location.bucket, location.key.empty() ? "" : "/", location.key);
}

}  // namespace titan::s3
