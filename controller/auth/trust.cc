#include "controller/auth/trust.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "openssl/err.h"
#include "openssl/x509_vfy.h"

namespace titan::auth {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);
constexpr size_t kMaxKnown = 20'000;  // About 1.5 KB each.

absl::Status reject(absl::string_view reason, absl::string_view why) {
  return rpc::error(absl::StatusCode::kUnauthenticated, reason,
                    absl::StrCat("the certificate of this connection ", why,
                                 ": reconnect with a certificate from `titanctl cluster issue`"));
}

absl::Status refusal(int error) {
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) return reject("CERTIFICATE_ENDED", "has expired, or its authority's has");
  return reject("CERTIFICATE_UNTRUSTED",
                absl::StrCat("was not signed by an authority that this controller trusts now (",
                             X509_verify_cert_error_string(error), ")"));
}

}  // namespace

void CertificateVerifier::reload_if_changed(absl::Time now) {
  looked_ = now;
  std::ifstream file(path_);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text == text_) return;
  std::vector<rpc::CertificatePtr> authorities = rpc::certificates_in(text);
  if (authorities.empty()) return;  // TLS keeps its old ones, too.
  text_ = std::move(text);
  authorities_ = std::move(authorities);
  ends_.clear();
}

absl::StatusOr<absl::Time> CertificateVerifier::verify(const std::string& chain, absl::Time now) const {
  const std::vector<rpc::CertificatePtr> given = rpc::certificates_in(chain);
  if (given.empty()) return refusal(X509_V_ERR_UNSPECIFIED);
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(), &X509_STORE_free);
  for (const rpc::CertificatePtr& authority : authorities_) X509_STORE_add_cert(store.get(), authority.get());
  const auto drop = [](STACK_OF(X509) * between) { sk_X509_free(between); };  // `given` owns the certificates.
  const std::unique_ptr<STACK_OF(X509), decltype(drop)> between(sk_X509_new_null(), drop);
  for (const rpc::CertificatePtr& one : given) sk_X509_push(between.get(), one.get());
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(X509_STORE_CTX_new(),
                                                                                &X509_STORE_CTX_free);
  X509_STORE_CTX_init(context.get(), store.get(), given.front().get(), between.get());
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool stands = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  if (!stands) return refusal(X509_STORE_CTX_get_error(context.get()));
  absl::Time first = absl::InfiniteFuture();
  const STACK_OF(X509)* way = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 0; i < sk_X509_num(way); ++i) first = std::min(first, rpc::end_of(*sk_X509_value(way, i)));
  return first;
}

absl::Status CertificateVerifier::stands(const std::string& chain) {
  sync::Lock lock(mutex_);
  const absl::Time now = now_();
  if (now - looked_ >= kLookAgain || now < looked_) reload_if_changed(now);
  const auto known = ends_.find(chain);
  if (known != ends_.end() && now < known->second) return absl::OkStatus();
  reload_if_changed(now);  // TLS may have read the file more recently.
  const absl::StatusOr<absl::Time> end = verify(chain, now);
  if (!end.ok()) return end.status();
  if (ends_.size() >= kMaxKnown) ends_.clear();
  ends_[chain] = *end;
  return absl::OkStatus();
}

}  // namespace titan::auth
