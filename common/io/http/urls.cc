#include "common/io/http/urls.h"

#include <curl/curl.h>

#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace titan::http {
namespace {

constexpr char kSchemes[] = "://";

// Encodes blanks and non-ASCII bytes, which servers write into addresses unencoded.
std::string with_encoded_blanks(const std::string& location) {
  std::string out;
  for (const char c : location) {
    if (c > 0x20 && c < 0x7f) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

std::string part(CURLU* url, CURLUPart which, unsigned int flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, which, &text, flags) != CURLUE_OK) return "";
  std::string out = text;
  curl_free(text);
  return out;
}

}  // namespace

std::string percent_encoded(const std::string& text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// Uses the parser that also sends the request: where two parsers differ, a token could go to the wrong server.
std::string origin(const std::string& url) {
  const std::unique_ptr<CURLU, FreeUrl> read(curl_url());
  if (curl_url_set(read.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  const std::string scheme = part(read.get(), CURLUPART_SCHEME);
  const std::string host = absl::AsciiStrToLower(part(read.get(), CURLUPART_HOST));
  const bool plain = host.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-_:[]") == std::string::npos;
  const bool has_user = !part(read.get(), CURLUPART_USER).empty() || !part(read.get(), CURLUPART_PASSWORD).empty();
  if ((scheme != "http" && scheme != "https") || host.empty() || !plain || has_user ||
      url.find('\0') != std::string::npos)
    return "";
  return absl::StrCat(scheme, kSchemes, host, ":", part(read.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT));
}

bool is_loopback(const std::string& url) {
  std::string host = origin(url);
  if (host.empty()) return false;
  host = host.substr(host.find(kSchemes) + 3);
  host = host.substr(0, host.rfind(':'));
  std::vector<std::string> numbers = absl::StrSplit(host, '.');
  int ignored = 0;
  bool address = numbers.size() == 4;
  for (const std::string& number : numbers) address = address && absl::SimpleAtoi(number, &ignored);
  return host == "localhost" || host == "[::1]" || (address && numbers[0] == "127");
}

std::string redirected(const std::string& url, const std::string& named) {
  const std::string location = with_encoded_blanks(named);
  const size_t scheme_end = url.find(kSchemes);
  std::string whole = location;
  if (absl::StartsWith(location, "//")) {
    whole = absl::StrCat(url.substr(0, scheme_end + 1), location);
  } else if (absl::StartsWith(location, "/")) {
    whole = absl::StrCat(url.substr(0, url.find('/', scheme_end + 3)), location);
  } else if (!absl::StrContains(location, kSchemes)) {
    return "";
  }
  return origin(whole).empty() ? "" : whole;
}

}  // namespace titan::http
