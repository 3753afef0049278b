#include "common/io/http/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/io/http/transfer.h"
#include "common/io/http/urls.h"

namespace titan::http {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeaderLength = 8192;

std::string without_quotes(absl::string_view etag) {
  absl::ConsumePrefix(&etag, "W/");
  absl::ConsumePrefix(&etag, "\"");
  absl::ConsumeSuffix(&etag, "\"");
  return std::string(etag);
}

bool is_redirect(int code) { return code == 301 || code == 302 || code == 303 || code == 307 || code == 308; }

}  // namespace

struct Http::State {
  HttpSettings settings;
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> error = {};

  // State of the current request.
  Sink* sink = nullptr;
  const std::stop_token* stop = nullptr;
  Answer answer;
  std::string location, own_etag, linked_etag;
  bool from_hub = true;  // No redirect has led to another server yet.
  bool begun = false;
  absl::Status said;  // Status of the sink, or Cancelled.

  explicit State(const HttpSettings& given) : settings(given) { curl = new_transfer(); }
  ~State() { curl_easy_cleanup(curl); }

  bool takes_token(const std::string& url) const {
    const std::string here = origin(url);
    const bool safe = absl::StartsWith(here, "https:") || settings.token_in_clear || is_loopback(url);
    return !settings.token.empty() && safe && here == origin(settings.endpoint);
  }

  void set_options(const std::string& url, std::optional<ByteRange> range, curl_slist* headers);
  absl::Status one_request(const std::string& url, std::optional<ByteRange> range);
  absl::Status elsewhere_error(const std::string& url) const;
  absl::Status follow(const std::string& url, std::optional<ByteRange> range);
  void on_header(absl::string_view line);
  bool begin_body();

  static size_t header(char* bytes, size_t, size_t size, void* self) {
    static_cast<State*>(self)->on_header({bytes, size});
    return size;
  }
  static size_t body(char* bytes, size_t, size_t size, void* self) {
    auto& state = *static_cast<State*>(self);
    if (state.answer.code >= 300) return size;  // Drops the page that comes with a redirect or an error.
    if (!state.begin_body()) return 0;
    state.said = state.sink->take({bytes, size});
    return state.said.ok() ? size : 0;
  }
  static int progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& state = *static_cast<State*>(self);
    if (state.said.ok())
      state.said = state.stop->stop_requested() ? absl::CancelledError("interrupted") : state.sink->idle();
    return state.said.ok() ? 0 : 1;
  }
};

void Http::State::on_header(absl::string_view line) {
  if (absl::StartsWith(line, "HTTP/")) {  // The answer of a proxy, or an interim answer, may come first.
    const size_t blank = line.find(' ');
    answer.code = blank == line.npos ? 0 : std::atoi(std::string(line.substr(blank)).c_str());
    own_etag.clear(), location.clear(), answer.content_range.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos || line.size() > kMaxHeaderLength) return;
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const std::string value(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  if (name == "location") location = value;
  if (name == "content-range") answer.content_range = value;
  if (name == "retry-after") answer.retry_after = parse_retry_after(value);
  if (!from_hub) return;  // The other headers are used only if the hub sent them.
  if (name == "etag") own_etag = without_quotes(value);
  if (name == "x-linked-etag") linked_etag = without_quotes(value);
  if (name == "x-repo-commit") answer.commit = value;
  if (name == "x-error-code") answer.error_code = value;
  if (name == "x-error-message") answer.error_message = value;
  if (name == "link") answer.link = value;
}

bool Http::State::begin_body() {
  if (begun) return true;
  begun = true;
  answer.etag = linked_etag.empty() ? own_etag : linked_etag;
  said = sink->begin(answer);
  return said.ok();
}

void Http::State::set_options(const std::string& url, std::optional<ByteRange> range, curl_slist* headers) {
  set_usual_options(curl, error.data(), url, {settings.timeout, settings.ca_file});
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_HEADEROPT, CURLHEADER_SEPARATE);  // Keeps the token from the proxy of a tunnel.
  if (range) {
    curl_easy_setopt(curl, CURLOPT_RANGE, absl::StrCat(range->begin, "-", range->end - 1).c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

// The hub issues a new address for each request, so a retry may succeed.
absl::Status Http::State::elsewhere_error(const std::string& url) const {
  return absl::UnavailableError(
      absl::StrCat(text::printable_name(origin(url)), ", to which the hub redirects, answers ", answer.code));
}

absl::Status Http::State::one_request(const std::string& url, std::optional<ByteRange> range) {
  answer = Answer{0, "", answer.commit, "", "", "", "", std::nullopt};
  curl_slist* headers = nullptr;
  if (takes_token(url))
    headers = curl_slist_append(headers, absl::StrCat("Authorization: Bearer ", settings.token).c_str());
  set_options(url, range, headers);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);
  if (!said.ok()) return said;
  if (code != CURLE_OK) return transfer_error(code, error.data(), url);
  if (answer.code >= 400 && answer.code != 416 && !from_hub) return elsewhere_error(url);
  if (answer.code >= 400) return answer_error(answer, !settings.token.empty());
  if (is_redirect(answer.code)) return absl::OkStatus();
  if (answer.code != 200 && answer.code != 206)
    return absl::FailedPreconditionError(
        absl::StrCat(text::printable_name(origin(url)), " answers ", answer.code, " to a plain request"));
  begin_body();
  return said;
}

absl::Status Http::State::follow(const std::string& first, std::optional<ByteRange> range) {
  std::string url = first;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    TITAN_RETURN_IF_ERROR(one_request(url, range));
    if (!is_redirect(answer.code)) return absl::OkStatus();
    const std::string next = redirected(url, location);
    if (next.empty())
      return absl::FailedPreconditionError(absl::StrCat(
          text::printable_name(origin(url)), " redirects to an address that is not http, https or an absolute path"));
    if (absl::StartsWith(origin(url), "https:") && !absl::StartsWith(origin(next), "https:"))
      return absl::FailedPreconditionError(
          absl::StrCat(text::printable_name(origin(url)), " redirects from https to http, which is not followed"));
    if (origin(next) != origin(settings.endpoint)) {
      from_hub = false;
      if (linked_etag.empty()) linked_etag = own_etag;
    }
    url = next;
  }
  return absl::FailedPreconditionError(absl::StrCat(text::printable_name(origin(first)), " redirects too many times"));
}

Http::Http(const HttpSettings& settings) : state_(std::make_unique<State>(settings)) {}
Http::~Http() = default;
Http::Http(Http&&) noexcept = default;

Outcome Http::get(const std::string& url, std::optional<ByteRange> range, Sink& sink, const std::stop_token& stop) {
  State& state = *state_;
  state.sink = &sink, state.stop = &stop;
  state.answer = {}, state.said = absl::OkStatus();
  state.linked_etag.clear(), state.own_etag.clear();
  state.from_hub = true, state.begun = false;
  if (!state.settings.token.empty() && !state.takes_token(state.settings.endpoint))
    return {absl::FailedPreconditionError(absl::StrCat("the token would be sent to ",
                                                       text::printable_name(origin(state.settings.endpoint)),
                                                       " unencrypted: use https, or pass --insecure to allow it")),
            std::nullopt};
  const absl::Status status = state.follow(url, range);
  return {status, state.answer.retry_after};
}

namespace {

constexpr char kNameToken[] = "set HF_TOKEN or --token-file";

std::string said(const Answer& answer) {
  return answer.error_message.empty() ? "" : absl::StrCat(" (\"", text::printable_name(answer.error_message), "\")");
}

absl::Status refused(const Answer& answer, bool with_token) {
  if (answer.error_code == "GatedRepo") {
    const std::string what = absl::StrCat("the repository is gated", said(answer), ": request access on its page");
    return with_token ? absl::PermissionDeniedError(what + ", with the account whose token is used here")
                      : absl::UnauthenticatedError(absl::StrCat(what, ", and give that account's token: ", kNameToken));
  }
  if (answer.code == 401 && !with_token)
    return absl::UnauthenticatedError(absl::StrCat("the hub does not show this repository without a token",
                                                   said(answer), ": it is private or does not exist; ", kNameToken));
  if (answer.code == 401)
    return absl::UnauthenticatedError(absl::StrCat("the hub does not know this token", said(answer),
                                                   ", or the repository does not exist or is hidden from it"));
  return absl::PermissionDeniedError(
      absl::StrCat("the hub denies access", said(answer), ": check what the token may read"));
}

absl::Status not_there(const Answer& answer) {
  if (answer.error_code == "RevisionNotFound") return absl::NotFoundError("the repository has no such revision");
  if (answer.error_code == "EntryNotFound") return absl::NotFoundError("the revision has no such file");
  return absl::NotFoundError("there is no such repository; names are case-sensitive, as on its page");
}

}  // namespace

absl::Status answer_error(const Answer& answer, bool with_token) {
  if (answer.error_code == "RepoNotFound" && (with_token || answer.code == 404)) return not_there(answer);
  if (answer.code == 401 || answer.code == 403) return refused(answer, with_token);
  if (answer.code == 404) return not_there(answer);
  if (answer.code == 416) return absl::OutOfRangeError("the file ends before the requested range");
  const std::string what = absl::StrCat("the server answers ", answer.code, said(answer));
  if (answer.code == 429) return absl::UnavailableError(what + ": too many requests");
  if (answer.code >= 500 || answer.code == 408 || answer.code == 425) return absl::UnavailableError(what);
  return absl::FailedPreconditionError(what);
}

std::optional<absl::Duration> parse_retry_after(const std::string& text) {
  int64_t seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) return absl::Seconds(std::clamp<int64_t>(seconds, 0, 86400));
  absl::Time until;
  std::string ignored;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &until, &ignored)) return std::nullopt;
  return std::max(absl::ZeroDuration(), until - absl::Now());
}

}  // namespace titan::http
