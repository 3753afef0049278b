#include "common/service/rpc/tls_probe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text/host_port.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"

namespace titan::rpc {
namespace {

using ContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;

// Offers HTTP/2 only, as gRPC does: a server that requires it ends other handshakes.
constexpr unsigned char kProtocols[] = "\x02h2";
constexpr absl::Duration kAlertTimeout = absl::Milliseconds(500);

// Waits until the socket is ready for `events`. Returns false when the deadline passes first or poll() fails.
bool wait_for(int socket, short events, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    pollfd waiting{socket, events, 0};
    const int found =
        ::poll(&waiting, 1,
               std::max<int>(0, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))))));
    if (found > 0) return true;
    if (found == 0 || errno != EINTR) return false;
  }
}

int connect_one(const addrinfo& at, absl::Time deadline) {
  const int socket = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  int error = 0;
  socklen_t size = sizeof error;
  const bool begun = ::connect(socket, at.ai_addr, at.ai_addrlen) == 0 || errno == EINPROGRESS;
  if (begun && wait_for(socket, POLLOUT, deadline) && ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
      error == 0)
    return socket;
  ::close(socket);
  return -1;
}

// Returns a connected socket, or -1.
int connect_to(const HostPort& where, absl::Time deadline) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(where.host.c_str(), absl::StrCat(where.port).c_str(), &wanted, &found) != 0) return -1;
  const absl::Cleanup free_them = [found] { ::freeaddrinfo(found); };
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (const int socket = connect_one(*at, deadline); socket >= 0) return socket;
  }
  return -1;
}

ContextPtr context_for(const Security& security) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return context;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(context.get(), kProtocols, sizeof kProtocols - 1);
  if (!security.cert.empty()) {
    SSL_CTX_use_certificate_chain_file(context.get(), security.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), security.key.c_str(), SSL_FILETYPE_PEM);
  }
  return context;
}

// Returns the peer's alert, which OpenSSL numbers as a reason above SSL_AD_REASON_OFFSET.
std::optional<int> alert_in_queue() {
  const int reason = ERR_GET_REASON(ERR_peek_error());
  if (reason <= SSL_AD_REASON_OFFSET || reason > SSL_AD_REASON_OFFSET + 255) return std::nullopt;
  return reason - SSL_AD_REASON_OFFSET;
}

// These errors mean that the peer's first bytes are not a TLS record, so it does not speak TLS.
bool is_plaintext_in_queue() {
  switch (ERR_GET_REASON(ERR_peek_error())) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_LENGTH_MISMATCH:
    case SSL_R_BAD_PROTOCOL_VERSION_NUMBER:
    case SSL_R_UNEXPECTED_MESSAGE:
      return true;
    default:
      return false;
  }
}

// Runs an OpenSSL call until it completes (above 0), fails or the deadline passes.
template <typename Call>
int run_until(SSL* ssl, int socket, absl::Time deadline, const Call& call) {
  while (true) {
    ERR_clear_error();
    const int done = call();
    if (done > 0) return done;
    const int wants = SSL_get_error(ssl, done);
    if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE) return done;
    if (!wait_for(socket, wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)) {
      ERR_clear_error();
      return 0;
    }
  }
}

void shake_hands(SSL* ssl, int socket, const Security& security, absl::Time deadline, TlsProbe& probe) {
  const bool through = run_until(ssl, socket, deadline, [ssl] { return SSL_connect(ssl); }) > 0;
  if (const std::optional<int> alert = alert_in_queue(); !through && alert) {
    probe.speaks = TlsProbe::Protocol::kTls;
    probe.alert = *alert;
  } else if (!through && is_plaintext_in_queue()) {
    probe.speaks = TlsProbe::Protocol::kPlaintext;
  }
  if (!through) return;
  probe.speaks = TlsProbe::Protocol::kTls;
  probe.certificate.reset(SSL_get1_peer_certificate(ssl));
  if (probe.certificate != nullptr && !security.ca.empty())
    probe.verified = verify(*probe.certificate, SSL_get_peer_cert_chain(ssl), security.ca, "ssl_server");
  // In TLS 1.3 a server checks our certificate only after our side of the handshake is complete, so its alert arrives
  // in place of its first data.
  char first = 0;
  const absl::Time alert_by = std::min(deadline, absl::Now() + kAlertTimeout);
  const int read = run_until(ssl, socket, alert_by, [ssl, &first] { return SSL_read(ssl, &first, 1); });
  if (const std::optional<int> alert = alert_in_queue(); read <= 0 && alert) probe.alert = *alert;
  probe.closed_after = read < 0 || (read == 0 && absl::Now() < alert_by);
}

std::string address_text(const ASN1_OCTET_STRING& bytes) {
  char text[INET6_ADDRSTRLEN];
  const int family = bytes.length == 4 ? AF_INET : AF_INET6;
  if (bytes.length != 4 && bytes.length != 16) return "";
  return ::inet_ntop(family, bytes.data, text, sizeof text) == nullptr ? "" : text;
}

std::string text_of(const ASN1_IA5STRING& bytes) {
  return {reinterpret_cast<const char*>(bytes.data), static_cast<size_t>(bytes.length)};
}

template <typename Take>
void each_name(const X509& certificate, const Take& take) {
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, /*critical=*/nullptr, /*index=*/nullptr));
  if (names == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) take(*sk_GENERAL_NAME_value(names, i));
  GENERAL_NAMES_free(names);
}

}  // namespace

VerifyError verify(X509& certificate, STACK_OF(X509) * chain, const std::string& ca, const char* purpose) {
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(), &X509_STORE_free);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              &X509_STORE_CTX_free);
  VerifyError found;
  if (X509_STORE_load_file(store.get(), ca.c_str()) == 1 &&
      X509_STORE_CTX_init(check.get(), store.get(), &certificate, chain) == 1) {
    X509_STORE_CTX_set_default(check.get(), purpose);
    if (X509_verify_cert(check.get()) != 1)
      found = {X509_STORE_CTX_get_error(check.get()), X509_STORE_CTX_get_error_depth(check.get())};
  }
  ERR_clear_error();
  return found;
}

std::vector<std::string> hosts_in(const X509& certificate) {
  std::vector<std::string> hosts;
  each_name(certificate, [&hosts](const GENERAL_NAME& name) {
    if (name.type == GEN_DNS) hosts.push_back(text_of(*name.d.dNSName));
    if (name.type == GEN_IPADD) hosts.push_back(address_text(*name.d.iPAddress));
  });
  return hosts;
}

std::vector<std::string> uris_in(const X509& certificate) {
  std::vector<std::string> uris;
  each_name(certificate, [&uris](const GENERAL_NAME& name) {
    if (name.type == GEN_URI) uris.push_back(text_of(*name.d.uniformResourceIdentifier));
  });
  return uris;
}

TlsProbe probe_tls(absl::string_view address, const Security& security, absl::Duration timeout) {
  TlsProbe probe;
  const absl::Time deadline = absl::Now() + timeout;
  const std::optional<HostPort> where = split_host_port(address);
  const int socket = where ? connect_to(*where, deadline) : -1;
  if (socket < 0) return probe;
  const absl::Cleanup close_it = [socket] { ::close(socket); };
  const ContextPtr context = context_for(security);
  const SslPtr ssl(context == nullptr ? nullptr : SSL_new(context.get()), &SSL_free);
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket) != 1) return probe;
  SSL_set_tlsext_host_name(ssl.get(), where->host.c_str());
  shake_hands(ssl.get(), socket, security, deadline, probe);
  ERR_clear_error();
  return probe;
}

}  // namespace titan::rpc
