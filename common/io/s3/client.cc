#include "common/io/s3/client.h"

#include <algorithm>
#include <iterator>
#include <stop_token>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/xml_response.h"
#include "common/io/storage/crc32c.h"

namespace titan::s3 {
namespace {

constexpr char kWriterHeader[] = "x-amz-meta-titan-writer";
constexpr char kChecksumHeader[] = "x-amz-checksum-crc32c";
constexpr int64_t kMaxTextLength = int64_t{4} << 20;

// Distinguishes one write from another of the same object.
std::string new_writer() { return host::random_hex(12); }

std::string checksum_of(const std::string& bytes) {
  const uint32_t crc = storage::crc32c(bytes.data(), bytes.size());
  const char big_endian[4] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16), static_cast<char>(crc >> 8),
                              static_cast<char>(crc)};
  return absl::Base64Escape(absl::string_view(big_endian, sizeof(big_endian)));
}

absl::Time http_time(const std::string& text) {
  absl::Time time = absl::InfinitePast();
  std::string ignored;
  absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &time, &ignored);
  return time;
}

Facts facts_of(const Response& response) {
  Facts facts{.etag = response.header("etag"),
              .writer = response.header(kWriterHeader),
              .modified = http_time(response.header("last-modified")),
              .now = http_time(response.header("date"))};
  if (!absl::SimpleAtoi(response.header("content-length"), &facts.size)) facts.size = -1;
  return facts;
}

std::vector<std::string> condition_headers(const WriteCondition& condition, const std::string& writer) {
  std::vector<std::string> headers;
  if (condition.kind == WriteCondition::kAbsent) headers.push_back("If-None-Match: *");
  if (condition.kind == WriteCondition::kSame) headers.push_back("If-Match: " + condition.etag);
  if (!writer.empty()) headers.push_back(absl::StrCat(kWriterHeader, ": ", writer));
  return headers;
}

// Returns the error for a list whose pages repeat.
absl::Status endless() { return absl::DataLossError("the next page of its list is the same page"); }

absl::Status not_understood(const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat("the store's answer is not understood: ", why.message()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<S3Client>> S3Client::open(const S3Settings& settings, std::string bucket,
                                                         CredentialSource source, http::RetryPolicy retry) {
  TITAN_ASSIGN_OR_RETURN(Credentials credentials, source());
  std::shared_ptr<S3Client> client(new S3Client(settings, std::move(bucket), std::move(source), std::move(retry)));
  sync::Lock lock(client->mutex_);
  client->credentials_ = std::move(credentials);
  return client;
}

std::string S3Client::place(const std::string& key) const { return to_text({bucket_, key}); }

// Reads the credentials again, since a session that has ended may have been renewed in the file that it came from.
// Returns Unavailable, so that the request is retried, if they have changed; otherwise `why`.
absl::Status S3Client::renew_credentials(const Credentials& used, absl::Status why) {
  absl::StatusOr<Credentials> fresh = source_();
  sync::Lock lock(mutex_);
  if (fresh.ok()) credentials_ = *std::move(fresh);
  const bool other = credentials_.key_id != used.key_id || credentials_.secret != used.secret ||
                     credentials_.session_token != used.session_token;
  return other ? absl::UnavailableError(why.message()) : why;
}

absl::Status S3Client::once(const Request& request, Response& response) {
  std::unique_ptr<S3Connection> exchange;
  Credentials credentials;
  {
    sync::Lock lock(mutex_);
    credentials = credentials_;
    if (!idle_.empty()) exchange = std::move(idle_.back()), idle_.pop_back();
  }
  if (exchange == nullptr) exchange = std::make_unique<S3Connection>(settings_, bucket_);
  absl::Status status = exchange->perform(request, credentials, response);
  {
    sync::Lock lock(mutex_);
    idle_.push_back(std::move(exchange));
  }
  // A long operation may report an error with code 200.
  const bool posted = std::string_view(request.method) == "POST";
  const bool refused = response.code >= 300 || (posted && response.body.find("<Error>") != std::string::npos);
  if (status.ok() && refused) status = answer_error(response, settings_, bucket_);
  return absl::IsUnauthenticated(status) ? renew_credentials(credentials, std::move(status)) : status;
}

// Returns the error for a missing bucket instead, if that is the cause: the answer to HEAD has no body, so it does not
// distinguish a missing bucket from a missing object.
absl::Status S3Client::look_at_bucket(const Request& request, const absl::Status& said) {
  const bool vague = absl::IsNotFound(said) || absl::IsPermissionDenied(said);
  if (!vague || std::string_view(request.method) != "HEAD" || bucket_seen_) return said;
  TITAN_RETURN_IF_ERROR(any(request.key).status());
  return said;
}

absl::Status S3Client::call(const char* doing, const Request& request, Response& response) {
  http::RetryPolicy policy = retry_;
  if (retries_disabled_) policy.attempts = 1;
  absl::Status status = http::with_retries(
      policy, std::stop_token(),
      [&]() -> http::Outcome {
        absl::Status one = once(request, response);
        std::optional<absl::Duration> asked;
        if (int64_t seconds = 0; absl::SimpleAtoi(response.header("retry-after"), &seconds) && seconds >= 0)
          asked = absl::Seconds(seconds);
        return {std::move(one), asked};
      },
      [] { return int64_t{0}; });
  if (status.ok()) bucket_seen_ = true;
  if (!status.ok()) status = look_at_bucket(request, status);
  return status.ok() ? status : annotate(status, absl::StrCat(doing, " ", place(request.key)));
}

absl::StatusOr<Facts> S3Client::head(const std::string& key) {
  Response response;
  TITAN_RETURN_IF_ERROR(call("look at", {.method = "HEAD", .key = key, .query = {}}, response));
  Facts facts = facts_of(response);
  if (facts.size < 0 || facts.etag.empty())
    return absl::UnavailableError(absl::StrCat("look at ", place(key), ": the store reports no size or etag"));
  return facts;
}

absl::Status S3Client::read(const std::string& key, const std::string& etag, int64_t offset, int64_t bytes, char* out) {
  int64_t done = 0;
  const auto rest = [&]() -> http::Outcome {
    Response response;
    const absl::Status status = once({.key = key,
                                      .query = {},
                                      .headers = {"If-Match: " + etag},
                                      .range = http::ByteRange{offset + done, offset + bytes},
                                      .into = out + done},
                                     response);
    done += response.received;
    if (done == bytes) return {absl::OkStatus(), std::nullopt};
    if (status.ok()) return {absl::UnavailableError("the answer ends too early"), std::nullopt};
    return {status, std::nullopt};
  };
  const absl::Status status =
      bytes == 0 ? absl::OkStatus() : http::with_retries(retry_, std::stop_token(), rest, [&] { return done; });
  if (status.ok()) return status;
  if (absl::IsAlreadyExists(status))
    return absl::AbortedError(absl::StrCat("read ", place(key), ": it was replaced meanwhile"));
  return annotate(status, absl::StrCat("read ", place(key)));
}

absl::StatusOr<std::string> S3Client::text(const std::string& key, Facts& facts) {
  Response response;
  TITAN_RETURN_IF_ERROR(call("read", {.key = key, .query = {}}, response));
  facts = facts_of(response);
  if (facts.etag.empty() || facts.size > kMaxTextLength)
    return absl::DataLossError(absl::StrCat("read ", place(key), ": has ", facts.size,
                                            " bytes, more than expected, or the store reports no etag"));
  return std::move(response.body);
}

// Checks why a condition does not hold. Returns OK if this write succeeded and its answer was lost; `refused` after
// another write.
absl::Status S3Client::check_lost_answer(const std::string& key, const std::string& writer, const absl::Status& refused,
                                         std::string* etag) {
  const absl::StatusOr<Facts> there = head(key);
  if (absl::IsNotFound(there.status())) return refused;
  TITAN_RETURN_IF_ERROR(there.status());
  if (there->writer != writer) return refused;
  if (etag != nullptr) *etag = there->etag;
  return absl::OkStatus();
}

absl::StatusOr<std::string> S3Client::put(const std::string& key, const std::string& bytes,
                                          const WriteCondition& condition) {
  const std::string writer = new_writer();
  const std::string checksum = checksum_of(bytes);
  Request request{
      .method = "PUT", .key = key, .query = {}, .headers = condition_headers(condition, writer), .body = &bytes};
  request.headers.push_back(absl::StrCat(kChecksumHeader, ": ", checksum));
  Response response;
  const absl::Status status = call("write", request, response);
  std::string etag = response.header("etag");
  // A missing object never fulfills kSame.
  if (condition.kind == WriteCondition::kSame && absl::IsNotFound(status))
    return absl::AlreadyExistsError(status.message());
  if (absl::IsAlreadyExists(status)) {
    TITAN_RETURN_IF_ERROR(check_lost_answer(key, writer, status, &etag));
    return etag;
  }
  TITAN_RETURN_IF_ERROR(status);
  const std::string& stored = response.header(kChecksumHeader);
  if (!stored.empty() && stored != checksum)
    return absl::DataLossError(absl::StrCat("write ", place(key), ": the store has different bytes than were sent"));
  return etag;
}

absl::Status S3Client::remove(const std::string& key) {
  Response response;
  const absl::Status status = call("delete", {.method = "DELETE", .key = key, .query = {}}, response);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<Listing> S3Client::list(const std::string& prefix, bool deep) {
  Listing listing;
  std::string next;
  do {
    Request request{.query = {}};
    if (!next.empty()) request.query.emplace_back("continuation-token", next);
    if (!deep) request.query.emplace_back("delimiter", "/");
    request.query.emplace_back("list-type", "2");
    request.query.emplace_back("prefix", prefix);
    Response response;
    TITAN_RETURN_IF_ERROR(call("list", request, response));
    absl::StatusOr<ListingPage> page = parse_page(response.body, prefix);
    if (page.ok() && !next.empty() && page->next == next) page = endless();
    if (!page.ok()) return annotate(not_understood(page.status()), absl::StrCat("list ", place(prefix)));
    std::move(page->objects.begin(), page->objects.end(), std::back_inserter(listing.objects));
    std::move(page->folders.begin(), page->folders.end(), std::back_inserter(listing.folders));
    listing.now = http_time(response.header("date"));
    next = page->next;
  } while (!next.empty());
  return listing;
}

absl::StatusOr<bool> S3Client::any(const std::string& prefix) {
  Response response;
  TITAN_RETURN_IF_ERROR(call("list", {.query = {{"list-type", "2"}, {"max-keys", "1"}, {"prefix", prefix}}}, response));
  const absl::StatusOr<ListingPage> page = parse_page(response.body, prefix);
  if (!page.ok()) return annotate(not_understood(page.status()), absl::StrCat("list ", place(prefix)));
  return !page->objects.empty();
}

absl::StatusOr<Upload> S3Client::create_upload(const std::string& key) {
  std::string writer = new_writer();
  static const std::string kNothing;
  Request request{.method = "POST",
                  .key = key,
                  .query = {{"uploads", ""}},
                  .headers = {"x-amz-checksum-algorithm: CRC32C", absl::StrCat(kWriterHeader, ": ", writer)},
                  .body = &kNothing};
  Response response;
  TITAN_RETURN_IF_ERROR(call("begin to write", request, response));
  const absl::StatusOr<Element> answer = parse_xml(response.body);
  if (!answer.ok() || answer->value("UploadId").empty())
    return absl::UnavailableError(absl::StrCat("begin to write ", place(key), ": the store names no upload"));
  return Upload{key, answer->value("UploadId"), std::move(writer)};
}

absl::StatusOr<CompletedPart> S3Client::upload_part(const Upload& upload, int number, const std::string& bytes) {
  CompletedPart part{.etag = "", .crc32c = checksum_of(bytes)};
  Response response;
  TITAN_RETURN_IF_ERROR(call("write a part of",
                             {.method = "PUT",
                              .key = upload.key,
                              .query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}},
                              .headers = {absl::StrCat(kChecksumHeader, ": ", part.crc32c)},
                              .body = &bytes},
                             response));
  const std::string& stored = response.header(kChecksumHeader);
  if (!stored.empty() && stored != part.crc32c)
    return absl::DataLossError(
        absl::StrCat("write a part of ", place(upload.key), ": the store has different bytes than were sent"));
  part.etag = response.header("etag");
  return part;
}

absl::Status S3Client::complete(const Upload& upload, const std::vector<CompletedPart>& parts,
                                const WriteCondition& condition) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < parts.size(); ++i) {
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>", xml_escaped(parts[i].etag),
                    "</ETag><ChecksumCRC32C>", parts[i].crc32c, "</ChecksumCRC32C></Part>");
  }
  absl::StrAppend(&body, "</CompleteMultipartUpload>");
  Response response;
  const absl::Status status = call("finish writing",
                                   {.method = "POST",
                                    .key = upload.key,
                                    .query = {{"uploadId", upload.id}},
                                    .headers = condition_headers(condition, ""),
                                    .body = &body},
                                   response);
  // An upload that does not exist any more may have been completed by the previous try.
  if (!absl::IsAlreadyExists(status) && !absl::IsNotFound(status)) return status;
  return check_lost_answer(upload.key, upload.writer, status, nullptr);
}

absl::Status S3Client::abort(const Upload& upload) {
  Response response;
  const absl::Status status =
      call("give up writing", {.method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}}, response);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<Upload>> S3Client::uploads(const std::string& prefix) {
  std::vector<Upload> found;
  std::string key_marker, id_marker;
  do {
    Request request{.query = {}};
    if (!key_marker.empty()) request.query.emplace_back("key-marker", key_marker);
    request.query.emplace_back("prefix", prefix);
    if (!id_marker.empty()) request.query.emplace_back("upload-id-marker", id_marker);
    request.query.emplace_back("uploads", "");
    Response response;
    TITAN_RETURN_IF_ERROR(call("list unfinished writes in", request, response));
    absl::StatusOr<UploadPage> page = parse_uploads(response.body, prefix);
    const bool same = page.ok() && page->next_key == key_marker && page->next_id == id_marker;
    if (same && !key_marker.empty()) page = endless();
    if (!page.ok())
      return annotate(not_understood(page.status()), absl::StrCat("list unfinished writes in ", place(prefix)));
    std::move(page->uploads.begin(), page->uploads.end(), std::back_inserter(found));
    key_marker = page->next_key;
    id_marker = page->next_id;
  } while (!key_marker.empty());
  return found;
}

}  // namespace titan::s3
