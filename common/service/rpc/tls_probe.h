#pragma once

// Performs one TLS handshake with the server at an address to find out why connections fail: gRPC reports only that a
// socket was closed.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/credentials.h"

namespace titan::rpc {

// Result of verifying a certificate against the authorities in the file `ca`: an X509_V_ERR_* of OpenSSL (X509_V_OK
// also when `ca` cannot be read) and the depth in the chain. `purpose` is OpenSSL's "ssl_client" or "ssl_server".
struct VerifyError {
  int error = X509_V_OK;
  int depth = 0;
};
VerifyError verify(X509& certificate, STACK_OF(X509) * chain, const std::string& ca, const char* purpose);

struct TlsProbe {
  enum class Protocol { kNothing, kPlaintext, kTls };
  // kNothing: no connection, or neither a handshake nor an alert in time.
  Protocol speaks = Protocol::kNothing;
  // The peer's certificate; null when it sent none.
  CertificatePtr certificate{nullptr, &X509_free};
  // Result for the authorities of Security::ca; depth 0 is the peer's certificate. X509_V_OK also when there are none.
  VerifyError verified;
  // Number of the TLS alert by which the peer refused us (45: certificate expired); -1: none.
  int alert = -1;
  // The peer closed the connection after our side of the handshake without sending anything. Servers that refuse a
  // certificate without an alert do so.
  bool closed_after = false;
};

// Takes at most `timeout`, apart from looking up the host. Sends nothing but the handshake with our certificate, and
// verifies the peer's afterwards.
TlsProbe probe_tls(absl::string_view address, const Security& security, absl::Duration timeout);

// Return the DNS names and IP addresses of a certificate as text, and its URIs.
std::vector<std::string> hosts_in(const X509& certificate);
std::vector<std::string> uris_in(const X509& certificate);

}  // namespace titan::rpc
