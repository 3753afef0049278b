// Which hub, and how much of it is kept on this machine.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/hub/settings.h"
#include "worker/rank/data/documents/hub/hub_files.h"

namespace titan::data {
namespace {

constexpr char kCacheGib[] = "TITAN_RANK_HUB_CACHE_GIB";

absl::StatusOr<int64_t> cache_bytes(int64_t usual) {
  const char* text = std::getenv(kCacheGib);
  if (text == nullptr || *text == '\0') return usual;
  double gib = 0;
  if (absl::SimpleAtod(text, &gib) && gib >= 0 && gib < 1e6) return static_cast<int64_t>(std::ldexp(gib, 30));
  return absl::InvalidArgumentError(absl::StrCat(kCacheGib, " is '", text, "': it must be a number of GiB"));
}

void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

}  // namespace

absl::StatusOr<hub::StreamOptions> hub_options() {
  const http::Environment environment = http::process_environment();
  hub::StreamOptions options;
  std::vector<std::string> warnings;
  TITAN_ASSIGN_OR_RETURN(options.settings, hub::settings_from(environment, "", "", warnings));
  for (const std::string& warning : warnings) warn(warning);
  options.retry.telling = [](const absl::Status& why, absl::Duration wait) {
    warn(absl::StrCat(why.message(), "; the hub is asked again in ",
                      absl::FormatDuration(absl::Trunc(wait, absl::Seconds(1)))));
  };
  const std::string home = hub::home_folder(environment);
  if (!home.empty()) options.cache_folder = home + "/titan";
  TITAN_ASSIGN_OR_RETURN(options.cache_bytes, cache_bytes(options.cache_bytes));
  if (options.cache_bytes == 0) options.cache_folder.clear();
  return options;
}

}  // namespace titan::data
