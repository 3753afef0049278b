#include "common/io/http/transfer.h"

#include <algorithm>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/text/message_text.h"
#include "common/io/http/urls.h"

namespace titan::http {
namespace {

// Returns whether a retry cannot help.
bool is_lasting(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT;
}

}  // namespace

CURL* new_transfer() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  return curl_easy_init();
}

void set_usual_options(CURL* curl, char* error, const std::string& url, const TransferLimits& limits) {
  curl_easy_reset(curl);  // Keeps the connections.
  error[0] = '\0';
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // A proxy's answer is not the server's.
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "titan/" TITAN_VERSION);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  const int64_t seconds = std::max<int64_t>(1, absl::ToInt64Seconds(limits.timeout));
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(seconds));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(seconds));
  if (!limits.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, limits.ca_file.c_str());
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
}

absl::Status transfer_error(CURLcode code, const char* error, const std::string& url) {
  const std::string what = absl::StrCat(text::printable_name(origin(url)), ": ",
                                        error[0] != '\0' ? text::printable_name(error) : curl_easy_strerror(code));
  return is_lasting(code) ? absl::FailedPreconditionError(what) : absl::UnavailableError(what);
}

}  // namespace titan::http
