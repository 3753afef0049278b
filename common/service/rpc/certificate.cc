#include "common/service/rpc/certificate.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "openssl/asn1.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/pem.h"

namespace titan::rpc {
namespace {

constexpr absl::Duration kInTime = absl::Hours(30 * 24), kPause = absl::Hours(24);

// Returns what `read` finds in a file, null for nothing. Clears OpenSSL's error queue, where later calls would take the
// errors for theirs.
template <typename Read>
auto read_from(const std::string& path, Read read) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> file(BIO_new_file(path.c_str(), "r"), &BIO_free);
  auto* found = file == nullptr ? nullptr : read(file.get());
  ERR_clear_error();
  return found;
}

}  // namespace

CertificatePtr read_certificate(const std::string& path) {
  return {read_from(path, [](BIO* file) { return PEM_read_bio_X509(file, nullptr, nullptr, nullptr); }), &X509_free};
}

KeyPtr read_key(const std::string& path) {
  const auto read = [](BIO* file) {
    const auto no_password = [](char*, int, int, void*) { return 0; };  // Prevents a prompt for a password.
    return PEM_read_bio_PrivateKey(file, nullptr, no_password, nullptr);
  };
  return {read_from(path, read), &EVP_PKEY_free};
}

std::vector<CertificatePtr> certificates_in(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                       &BIO_free);
  std::vector<CertificatePtr> found;
  while (X509* const next = PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr))
    found.emplace_back(next, &X509_free);
  ERR_clear_error();
  return found;
}

absl::Time end_of(const X509& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return absl::InfinitePast();
  return absl::FromTM(end, absl::UTCTimeZone());
}

absl::StatusOr<absl::Time> certificate_expiry(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::Time first = absl::InfiniteFuture();
  for (const CertificatePtr& one : certificates_in(text)) first = std::min(first, end_of(*one));
  if (first == absl::InfiniteFuture() || first == absl::InfinitePast())
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no certificate in PEM format"));
  return first;
}

std::optional<double> certificate_expiry_seconds(const std::string& path) {
  const absl::StatusOr<absl::Time> end = certificate_expiry(path);
  return end.ok() ? std::optional(absl::ToDoubleSeconds(*end - absl::UnixEpoch())) : std::nullopt;
}

std::optional<std::string> CertificateExpiryWarning::due(absl::Time now) {
  if (path_.empty() || now < next_) return std::nullopt;
  next_ = now + kPause;
  const absl::StatusOr<absl::Time> end = certificate_expiry(path_);
  if (!end.ok() || *end - now > kInTime) return std::nullopt;
  return absl::StrCat(
      "the certificate ", path_, *end > now ? " expires at " : " expired at ",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", *end, absl::UTCTimeZone()),
      "; renew it with `titanctl cluster issue --renew` (read without a restart), or connections will be "
      "refused");
}

}  // namespace titan::rpc
