#include "common/io/s3/signed_request.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/digest/digest.h"
#include "common/base/text/message_text.h"
#include "common/io/http/ranges.h"
#include "common/io/http/transfer.h"
#include "common/io/http/urls.h"
#include "common/io/s3/xml_response.h"

namespace titan::s3 {
namespace {

constexpr size_t kMaxHeaderLength = 8192, kMaxBodyLength = size_t{16} << 20;

// Returns whether the bucket is in the path of the address. AWS's own stores require new buckets in the host name;
// other stores expect them in the path. A name with dots must be in the path, because no certificate covers such a
// host.
bool bucket_in_path(const S3Settings& settings, const std::string& bucket) {
  return !settings.endpoint.empty() || absl::StrContains(bucket, ".");
}

std::string server(const S3Settings& settings, const std::string& bucket) {
  if (!settings.endpoint.empty()) return settings.endpoint;
  const std::string host = absl::StrCat("s3.", settings.region, ".amazonaws.com");
  return absl::StrCat("https://", bucket_in_path(settings, bucket) ? "" : bucket + ".", host);
}

// The address is signed as it is, so everything is encoded in the form that signatures require.
std::string address(const S3Settings& settings, const std::string& bucket, const Request& request) {
  std::string url = server(settings, bucket);
  if (bucket_in_path(settings, bucket)) absl::StrAppend(&url, "/", bucket);
  if (!request.key.empty() || !bucket_in_path(settings, bucket)) {
    absl::StrAppend(&url, "/", http::percent_encoded(request.key, /*keep_slashes=*/true));
  }
  const char* mark = "?";
  for (const auto& [name, value] : request.query) {
    absl::StrAppend(&url, mark, http::percent_encoded(name, false), "=", http::percent_encoded(value, false));
    mark = "&";
  }
  return url;
}

// Returns "HOST" or "HOST:PORT", as in the address: libcurl's own signature omits the port.
std::string host_of(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

constexpr char kConditions[] = "; this store cannot do what checkpoints need (conditional writes)";
constexpr char kRenew[] = "; the session has ended: renew AWS_SESSION_TOKEN or its profile";
constexpr char kKeys[] = "; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or their profile";

// The status for an error code of a store, which is more specific than the HTTP status.
struct KnownCode {
  const char* code;
  absl::StatusCode status;
  const char* advice = "";
};
using absl::StatusCode;
constexpr KnownCode kKnownCodes[] = {
    {"PreconditionFailed", StatusCode::kAlreadyExists},
    // The store received other bytes than were sent and discarded them.
    {"BadDigest", StatusCode::kUnavailable},
    {"InvalidDigest", StatusCode::kUnavailable},
    {"XAmzContentSHA256Mismatch", StatusCode::kUnavailable},
    {"XAmzContentChecksumMismatch", StatusCode::kUnavailable},
    {"IncompleteBody", StatusCode::kUnavailable},
    // The store is overloaded, or the request conflicts with another one: a retry may succeed.
    {"RequestTimeout", StatusCode::kUnavailable},
    {"ConditionalRequestConflict", StatusCode::kUnavailable},
    {"OperationAborted", StatusCode::kUnavailable},
    {"SlowDown", StatusCode::kUnavailable},
    {"InternalError", StatusCode::kUnavailable},
    {"ServiceUnavailable", StatusCode::kUnavailable},
    {"ExpiredToken", StatusCode::kUnauthenticated, kRenew},
    {"InvalidToken", StatusCode::kUnauthenticated, kRenew},
    {"TokenRefreshRequired", StatusCode::kUnauthenticated, kRenew},
    {"InvalidAccessKeyId", StatusCode::kUnauthenticated, kKeys},
    {"SignatureDoesNotMatch", StatusCode::kUnauthenticated, kKeys},
    {"RequestTimeTooSkewed", StatusCode::kFailedPrecondition, "; set this machine's clock right"},
    {"NotImplemented", StatusCode::kFailedPrecondition, kConditions},
};

}  // namespace

const std::string& Response::header(const std::string& name) const {
  static const std::string kNone;
  const auto found = headers.find(name);
  return found == headers.end() ? kNone : found->second;
}

struct S3Connection::State {
  S3Settings settings;
  std::string bucket;
  CURL* curl = http::new_transfer();
  std::array<char, CURL_ERROR_SIZE> error = {};
  const Request* request = nullptr;
  Response* response = nullptr;
  const char* refused = nullptr;

  void on_header(absl::string_view line);
  size_t on_body(absl::string_view bytes);
  void set_options(const std::string& url, const Credentials& credentials, curl_slist* headers);

  static size_t header(char* bytes, size_t, size_t size, void* self) {
    static_cast<State*>(self)->on_header({bytes, size});
    return size;
  }
  static size_t body(char* bytes, size_t, size_t size, void* self) {
    return static_cast<State*>(self)->on_body({bytes, size});
  }
};

S3Connection::S3Connection(const S3Settings& settings, std::string bucket)
    : state_(std::make_unique<State>(State{settings, std::move(bucket)})) {}
S3Connection::~S3Connection() { curl_easy_cleanup(state_->curl); }

void S3Connection::State::on_header(absl::string_view line) {
  if (absl::StartsWith(line, "HTTP/")) {  // An interim answer may come first.
    const size_t blank = line.find(' ');
    response->code = blank == line.npos ? 0 : std::atoi(std::string(line.substr(blank)).c_str());
    response->headers.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos || line.size() > kMaxHeaderLength) return;
  response->headers[absl::AsciiStrToLower(line.substr(0, colon))] =
      std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
}

size_t S3Connection::State::on_body(absl::string_view bytes) {
  if (request->into == nullptr || response->code >= 300) {
    if (response->body.size() + bytes.size() > kMaxBodyLength) {
      refused = "the answer is too long";
      return 0;
    }
    response->body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  const int64_t range_size = request->range->end - request->range->begin;
  if (response->received == 0) {
    const auto range = http::parse_content_range(response->header("content-range"));
    if (response->code != 206 || !range || range->range.begin != request->range->begin)
      refused = "it sends other bytes than requested";
  }
  if (response->received + static_cast<int64_t>(bytes.size()) > range_size)
    refused = "it sends more bytes than requested";
  if (refused != nullptr) return 0;
  std::memcpy(request->into + response->received, bytes.data(), bytes.size());
  response->received += static_cast<int64_t>(bytes.size());
  return bytes.size();
}

void S3Connection::State::set_options(const std::string& url, const Credentials& credentials, curl_slist* headers) {
  http::set_usual_options(curl, error.data(), url, {settings.timeout, settings.ca_file});
  curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, absl::StrCat("aws:amz:", settings.region, ":s3").c_str());
  curl_easy_setopt(curl, CURLOPT_USERPWD, absl::StrCat(credentials.key_id, ":", credentials.secret).c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_HEADEROPT, CURLHEADER_SEPARATE);  // Keeps the headers from the proxy of a tunnel.
  if (std::strcmp(request->method, "HEAD") == 0) {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
  }
  if (request->body != nullptr) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request->body->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body->data());
  }
  if (request->range) {
    curl_easy_setopt(curl, CURLOPT_RANGE, absl::StrCat(request->range->begin, "-", request->range->end - 1).c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
}

absl::Status S3Connection::perform(const Request& request, const Credentials& credentials, Response& response) {
  State& state = *state_;
  response = {};
  state.request = &request, state.response = &response, state.refused = nullptr;
  const std::string url = address(state.settings, state.bucket, request);
  static const std::string kNothing;
  curl_slist* headers = nullptr;
  const auto add = [&](const std::string& line) { headers = curl_slist_append(headers, line.c_str()); };
  add("Host: " + host_of(url));
  // It is part of the signature, so every store compares it with the body that arrived.
  add("x-amz-content-sha256: " + digest::sha256_hex(request.body == nullptr ? kNothing : *request.body));
  if (!credentials.session_token.empty()) add("x-amz-security-token: " + credentials.session_token);
  if (request.body != nullptr) add("Content-Type: application/octet-stream");
  for (const std::string& line : request.headers) add(line);
  state.set_options(url, credentials, headers);
  const CURLcode code = curl_easy_perform(state.curl);
  curl_slist_free_all(headers);
  curl_easy_setopt(state.curl, CURLOPT_USERPWD, nullptr);
  if (state.refused != nullptr)
    return absl::UnavailableError(absl::StrCat(text::printable_name(http::origin(url)), ": ", state.refused));
  if (code != CURLE_OK) return http::transfer_error(code, state.error.data(), url);
  return absl::OkStatus();
}

absl::Status answer_error(const Response& response, const S3Settings& settings, const std::string& bucket) {
  const absl::StatusOr<Element> xml = parse_xml(response.body);
  const std::string code = xml.ok() ? xml->value("Code") : "";
  std::string what =
      absl::StrCat("the store answers ", response.code, code.empty() ? "" : " ", text::printable_name(code));
  if (xml.ok() && !xml->value("Message").empty())
    absl::StrAppend(&what, ": ", text::printable_name(xml->value("Message")));
  if (code == "NoSuchBucket")
    return absl::FailedPreconditionError(absl::StrCat("there is no bucket ", bucket, " at ",
                                                      text::printable_name(http::origin(server(settings, bucket))),
                                                      ": create it, or name another one"));
  if (response.code == 301 || response.code == 307 || code == "AuthorizationHeaderMalformed") {
    const std::string& region = response.header("x-amz-bucket-region");
    return absl::FailedPreconditionError(absl::StrCat("the bucket is not in the region ", settings.region,
                                                      ": set AWS_REGION", region.empty() ? "" : " = ",
                                                      text::printable_name(region), " (", what, ")"));
  }
  for (const KnownCode& known : kKnownCodes) {
    if (code == known.code) return absl::Status(known.status, absl::StrCat(what, known.advice));
  }
  if (response.code == 412)
    return absl::AlreadyExistsError(absl::StrCat("a condition on the object does not hold (", what, ")"));
  if (response.code == 401 || response.code == 403)
    return absl::PermissionDeniedError(
        absl::StrCat(what, "; these credentials need to list, read, write and delete in the bucket ", bucket));
  if (response.code == 404) return absl::NotFoundError(what);
  if (response.code == 501) return absl::FailedPreconditionError(what + kConditions);
  if (response.code == 429 || response.code >= 500 || response.code == 408) return absl::UnavailableError(what);
  return absl::FailedPreconditionError(what);
}

}  // namespace titan::s3
