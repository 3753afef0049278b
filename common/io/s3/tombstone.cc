#include "common/io/s3/tombstone.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"

namespace titan::s3 {
namespace {

constexpr absl::string_view kBegin = "titan: nothing is here, ";
constexpr size_t kRandom = 20;
constexpr int64_t kBytes = kBegin.size() + 2 * kRandom;

}  // namespace

std::string make_tombstone() { return absl::StrCat(kBegin, host::random_hex(kRandom)); }

absl::StatusOr<bool> is_tombstone(S3Client& client, const std::string& key, int64_t size) {
  if (size != kBytes) return false;
  Facts facts;
  const absl::StatusOr<std::string> text = client.text(key, facts);
  if (absl::IsNotFound(text.status())) return true;
  if (!text.ok()) return text.status();
  return absl::StartsWith(*text, kBegin);
}

}  // namespace titan::s3
