#include "common/service/rpc/connection_fault.h"

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/text/host_port.h"
#include "common/service/rpc/error.h"
#include "common/service/rpc/identity.h"
#include "common/service/rpc/tls_probe.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"

namespace titan::rpc {
namespace {

constexpr char kRenew[] = "renew it with `titanctl cluster issue --renew`; it is read without a restart";

absl::Status fault(absl::string_view reason, const std::string& what, absl::string_view remedy) {
  return error(absl::StatusCode::kUnavailable, reason, what, {{kRemedy, std::string(remedy)}});
}

std::string when(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", time, absl::UTCTimeZone()); }

std::string issuer_of(const X509& certificate) {
  char text[256] = "";
  X509_NAME_get_text_by_NID(X509_get_issuer_name(&certificate), NID_commonName, text, sizeof text);
  return text;
}

bool is_for(X509* certificate, const std::string& host) {
  return X509_check_host(certificate, host.c_str(), host.size(), 0, nullptr) == 1 ||
         X509_check_ip_asc(certificate, host.c_str(), 0) == 1;
}

absl::Status untrusted(const TlsProbe& probe, absl::string_view address, const Security& security) {
  const X509& certificate = *probe.certificate;
  if (probe.verified.error == X509_V_ERR_CERT_NOT_YET_VALID) {
    return fault("CONTROLLER_CERTIFICATE_UNTRUSTED",
                 absl::StrCat("the certificate of the controller at ", address, " is not valid yet"),
                 "the clock of this machine, or of the one that made the certificate, is wrong");
  }
  if (probe.verified.error == X509_V_ERR_CERT_HAS_EXPIRED && probe.verified.depth == 0) {
    return fault(
        "CONTROLLER_CERTIFICATE_EXPIRED",
        absl::StrCat("the certificate of the controller at ", address, " expired at ", when(end_of(certificate))),
        kRenew);
  }
  if (probe.verified.error == X509_V_ERR_CERT_HAS_EXPIRED) {
    return fault("CONTROLLER_CERTIFICATE_EXPIRED",
                 absl::StrCat("the authority that signed the certificate of the controller at ", address, " (",
                              issuer_of(certificate), ") has expired"),
                 "make a new authority with `titanctl cluster init-ca`, and issue new certificates with it");
  }
  return fault("CONTROLLER_CERTIFICATE_UNTRUSTED",
               absl::StrCat("the certificate of the controller at ", address, " is signed by another authority (",
                            issuer_of(certificate), ") than those in ", security.ca, ": ",
                            X509_verify_cert_error_string(probe.verified.error)),
               "give the ca.crt of the controller's cluster with --tls or --tls-ca");
}

absl::Status check_controller(const TlsProbe& probe, absl::string_view address, const Security& security) {
  if (probe.certificate == nullptr) return absl::OkStatus();
  if (probe.verified.error != X509_V_OK) return untrusted(probe, address, security);
  const std::optional<HostPort> where = split_host_port(address);
  if (where && !is_for(probe.certificate.get(), where->host)) {
    return fault("CONTROLLER_NAME_DIFFERS",
                 absl::StrCat("the certificate of the controller at ", address, " is not for the name ", where->host,
                              ", but for ", absl::StrJoin(hosts_in(*probe.certificate), ", ")),
                 "name the controller as its certificate does, or make one for this name: `titanctl cluster issue "
                 "--controller --address NAME,NAME`");
  }
  const std::optional<Identity> who = identity_in(uris_in(*probe.certificate));
  if (who && who->kind == Identity::Kind::kController) return absl::OkStatus();
  return fault("NOT_A_CONTROLLER",
               absl::StrCat("the server at ", address, " has the certificate of ",
                            who ? to_uri(*who) : std::string("another identity"), " and not of a controller"),
               "check the address; `titanctl cluster issue --controller` makes a controller's certificate");
}

bool signed_by_ours(const Security& security) {
  const CertificatePtr own = read_certificate(security.cert);
  return own == nullptr || verify(*own, nullptr, security.ca, "ssl_client").error == X509_V_OK;
}

// The alert that a server sends, if any, depends on the versions of OpenSSL and gRPC, so this also checks our
// certificate itself: the authority that signed the controller's certificate should have signed ours.
absl::Status refused(int alert, absl::string_view address, const Security& security) {
  const std::string what = absl::StrCat("the controller at ", address, " refuses the certificate ",
                                        security.cert.empty() ? "that is missing" : security.cert);
  const absl::StatusOr<absl::Time> end = certificate_expiry(security.cert);
  const bool expired = end.ok() && *end <= absl::Now();
  if (alert == SSL_AD_CERTIFICATE_EXPIRED || expired)
    return fault("CERTIFICATE_EXPIRED", absl::StrCat(what, ": it expired", expired ? " at " + when(*end) : ""), kRenew);
  constexpr char kAnother[] =
      "give a certificate of the controller's own cluster with --tls, or with --tls-cert and --tls-key";
  if (alert == SSL_AD_UNKNOWN_CA || !signed_by_ours(security)) {
    return fault("CERTIFICATE_UNTRUSTED",
                 absl::StrCat(what, ": it is signed by an authority that the controller does not know"), kAnother);
  }
  if (alert < 0) return absl::OkStatus();  // The controller may also be shutting down.
  return fault("CERTIFICATE_REFUSED", absl::StrCat(what, ": ", SSL_alert_desc_string_long(alert)), kAnother);
}

}  // namespace

absl::Status connection_fault(absl::string_view address, const Security& security, absl::Duration timeout) {
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  const TlsProbe probe = probe_tls(address, security, timeout);
  if (!security.tls()) {
    if (probe.speaks != TlsProbe::Protocol::kTls) return absl::OkStatus();
    return fault("TLS_EXPECTED",
                 absl::StrCat("the server at ", address, " uses TLS, but this program is configured without it"),
                 "give the folder with ca.crt, and with tls.crt and tls.key if you have a certificate: --tls FOLDER "
                 "(TITAN_TLS)");
  }
  if (probe.speaks == TlsProbe::Protocol::kPlaintext) {
    return fault("TLS_NOT_SPOKEN",
                 absl::StrCat("the server at ", address, " does not use TLS, but this program is configured for it"),
                 "check the address; leave out --tls and --tls-ca (TITAN_TLS, TITAN_TLS_CA) if this controller uses "
                 "plaintext");
  }
  if (probe.speaks == TlsProbe::Protocol::kNothing) return absl::OkStatus();
  if (absl::Status wrong = check_controller(probe, address, security); !wrong.ok()) return wrong;
  const bool is_refused = probe.alert >= 0 || (probe.closed_after && !security.cert.empty());
  return is_refused ? refused(probe.alert, address, security) : absl::OkStatus();
}

}  // namespace titan::rpc
