#pragma once

// Accesses a bucket of an S3-compatible object store. Every error names the object and the operation.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/http/retry.h"
#include "common/io/s3/settings.h"
#include "common/io/s3/signed_request.h"
#include "common/io/s3/xml_response.h"

namespace titan::s3 {

struct Facts {
  int64_t size = 0;
  std::string etag;
  std::string writer;   // Random mark of the write that made the object.
  absl::Time modified;  // By the store's clock.
  absl::Time now;       // When the store answered, by the same clock.
};

// The state that an object must have for a write to happen.
struct WriteCondition {
  enum Kind { kNone, kAbsent, kSame } kind = kNone;
  std::string etag = {};  // For kSame.
};

struct Listing {
  std::vector<Object> objects;
  std::vector<std::string> folders;  // Same as ListingPage::folders.
  absl::Time now;                    // By the store's clock.
};

struct CompletedPart {
  std::string etag, crc32c;
};
using CredentialSource = std::function<absl::StatusOr<Credentials>()>;

// Thread-safe. Uses a separate connection for each concurrent call.
class S3Client {
 public:
  // Calls `source` now, and again when the store rejects the credentials. Errors: those of `source`.
  static absl::StatusOr<std::shared_ptr<S3Client>> open(const S3Settings& settings, std::string bucket,
                                                        CredentialSource source, http::RetryPolicy retry = {});

  // Returns an object's facts; NotFound for a missing object. A missing bucket is a FailedPrecondition in every call.
  absl::StatusOr<Facts> head(const std::string& key);
  // Fills `out` with `bytes` bytes from `offset`. Aborted when the object's etag is not `etag` any more.
  absl::Status read(const std::string& key, const std::string& etag, int64_t offset, int64_t bytes, char* out);
  // Returns the content of a small object and its facts; DataLoss beyond 4 MiB.
  absl::StatusOr<std::string> text(const std::string& key, Facts& facts);

  // Writes an object and returns its new etag. AlreadyExists when the condition does not hold. If an answer was lost,
  // the object's mark shows whether the write happened.
  absl::StatusOr<std::string> put(const std::string& key, const std::string& bytes, const WriteCondition& condition);
  absl::Status remove(const std::string& key);  // OK when it is missing.

  // Lists the objects whose keys begin with `prefix`. `deep`: includes keys with a further '/', and returns no folders.
  absl::StatusOr<Listing> list(const std::string& prefix, bool deep);
  absl::StatusOr<bool> any(const std::string& prefix);  // Whether any key begins with it.

  // Multipart uploads: the object appears only with complete(), which fails with AlreadyExists when the condition does
  // not hold.
  absl::StatusOr<Upload> create_upload(const std::string& key);
  absl::StatusOr<CompletedPart> upload_part(const Upload& upload, int number,
                                            const std::string& bytes);  // Numbered from 1.
  absl::Status complete(const Upload& upload, const std::vector<CompletedPart>& parts, const WriteCondition& condition);
  absl::Status abort(const Upload& upload);                                // OK when it is missing.
  absl::StatusOr<std::vector<Upload>> uploads(const std::string& prefix);  // Neither completed nor aborted.

  // Disables retries, except in read(), for a caller that ends and must not wait for a store that does not answer.
  void disable_retries() { retries_disabled_ = true; }

  // Whether the store was seen to honor conditions, for object_fence.h.
  std::atomic<bool> supports_conditions{false};

  const std::string& bucket() const { return bucket_; }
  std::string place(const std::string& key) const;  // Returns "s3://BUCKET/KEY".

 private:
  S3Client(const S3Settings& settings, std::string bucket, CredentialSource source, http::RetryPolicy retry)
      : settings_(settings), bucket_(std::move(bucket)), source_(std::move(source)), retry_(std::move(retry)) {}

  absl::Status call(const char* doing, const Request& request, Response& response);
  absl::Status once(const Request& request, Response& response);
  absl::Status renew_credentials(const Credentials& used, absl::Status why);
  absl::Status look_at_bucket(const Request& request, const absl::Status& said);
  absl::Status check_lost_answer(const std::string& key, const std::string& writer, const absl::Status& refused,
                                 std::string* etag);

  const S3Settings settings_;
  const std::string bucket_;
  const CredentialSource source_;
  const http::RetryPolicy retry_;
  std::atomic<bool> bucket_seen_{false}, retries_disabled_{false};
  sync::Mutex mutex_;
  Credentials credentials_ TITAN_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<S3Connection>> idle_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::s3
