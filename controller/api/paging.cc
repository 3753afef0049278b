#include "controller/api/paging.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/service/rpc/error.h"

namespace titan::api {
namespace {

uint32_t digest(const std::string& text) {
  return static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

}  // namespace

std::string write_token(const std::string& after, const std::string& bound_to) {
  return absl::WebSafeBase64Escape(absl::StrCat(digest(bound_to), " ", digest(after), " ", after));
}

absl::StatusOr<PageRequest> read_page(int size, const std::string& token, const std::string& bound_to) {
  if (size < 0)
    return rpc::bad_request("BAD_PAGE_SIZE", {{"page_size", absl::StrCat("is ", size, ", but must not be negative")}});
  PageRequest page;
  page.size = size == 0 ? 50 : std::min(size, 1000);
  if (token.empty()) return page;
  std::string text;
  const bool decoded = absl::WebSafeBase64Unescape(token, &text);
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  if (!decoded || parts.size() != 3 || parts[0] != absl::StrCat(digest(bound_to)) ||
      parts[1] != absl::StrCat(digest(parts[2]))) {
    return rpc::bad_request("BAD_PAGE_TOKEN",
                            {{"page_token", "was not issued for this request; start without a token"}});
  }
  page.after = parts[2];
  return page;
}

}  // namespace titan::api
