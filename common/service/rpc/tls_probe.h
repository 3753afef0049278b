#pragma once

// One TLS handshake with whatever listens at an address, for its facts: gRPC says no more of a failed one than that a
// socket was closed.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/credentials.h"

namespace titan::rpc {

// What is wrong with a certificate by the authorities in the file `ca`: one of OpenSSL's X509_V_ERR_*, and its depth.
struct VerifyError {
  int error = X509_V_OK;
  int depth = 0;
};
VerifyError verify(X509& certificate, STACK_OF(X509) * chain, const std::string& ca, const char* purpose);

struct TlsProbe {
  enum class Speaks { kNothing, kPlaintext, kTls };
  // kNothing: no connection, or neither a handshake nor an alert within the time.
  Speaks speaks = Speaks::kNothing;
  // Of the peer, with those that it sent along; null when it showed none.
  CertificatePtr certificate{nullptr, &X509_free};
  // By the authorities of Security::ca; the depth 0 is the peer's own. X509_V_OK also when there are none.
  VerifyError verified;
  // The alert by which the peer refused us, as TLS numbers it (45: certificate expired); -1: none.
  int alert = -1;
  // The peer closed the connection when the handshake was over for us, before it had said a word: so do servers that
  // refuse a certificate without an alert.
  bool closed_after = false;
};

// Takes `patience` at most, apart from looking up the host's name. Verifies nothing before the handshake is over, and
// sends nothing in it but our certificate.
TlsProbe probe_tls(absl::string_view address, const Security& security, absl::Duration patience);

// What a certificate is for: its DNS names and IP addresses as text, and its URIs.
std::vector<std::string> hosts_in(const X509& certificate);
std::vector<std::string> uris_in(const X509& certificate);

}  // namespace titan::rpc
