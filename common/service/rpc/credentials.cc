#include "common/service/rpc/credentials.h"

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/rpc/address.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/identity.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "openssl/err.h"
#include "openssl/x509.h"

namespace titan::rpc {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned int kSecondsToLookAgain = 1;

bool by_unix_socket(absl::string_view address) { return absl::StartsWith(address, "unix:"); }

absl::Status check_plain(absl::string_view address, const Security& security, absl::string_view others) {
  if (security.insecure || is_local(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      address, " is beyond this machine, where plaintext can be read or changed in transit: give ", others));
}

absl::Status check_together(const Security& security) {
  if (security.cert.empty() != security.key.empty())
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together: give both or neither");
  if (!security.cert.empty() && security.ca.empty())
    return absl::InvalidArgumentError(
        "--tls-cert needs --tls-ca: the authority that signs the other end's certificate");
  if (security.tls() && security.insecure)
    return absl::InvalidArgumentError("--insecure and --tls-ca do not go together: leave one out");
  return absl::OkStatus();
}

bool holds_certificate(const std::string& path) { return read_certificate(path) != nullptr; }

bool holds_key(const std::string& path) { return read_key(path) != nullptr; }

// Checks that the key belongs to the certificate. A renewal keeps the key, so they match on disk at every moment.
absl::Status check_pair(const Security& security) {
  if (security.cert.empty()) return absl::OkStatus();
  const CertificatePtr certificate = read_certificate(security.cert);
  const KeyPtr key = read_key(security.key);
  if (certificate != nullptr && key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1)
    return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat("--tls-key ", security.key, " is not the key of --tls-cert ", security.cert));
}

// gRPC reports nothing about files that it cannot read or parse; every connection just fails.
absl::Status check_file(absl::string_view flag, const std::string& path, bool (*is_right)(const std::string&),
                        absl::string_view what) {
  if (path.empty()) return absl::OkStatus();
  if (access(path.c_str(), R_OK) != 0) return errno_status(errno, absl::StrCat("read ", flag, " ", path));
  if (is_right(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, " holds no ", what, " in PEM format"));
}

absl::Status check_files(const Security& security) {
  TITAN_RETURN_IF_ERROR(check_file("--tls-ca", security.ca, holds_certificate, "certificate"));
  TITAN_RETURN_IF_ERROR(check_file("--tls-cert", security.cert, holds_certificate, "certificate"));
  TITAN_RETURN_IF_ERROR(check_file("--tls-key", security.key, holds_key, "private key without a password"));
  return check_pair(security);
}

std::shared_ptr<tls::CertificateProviderInterface> watch(const Security& security) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(security.key, security.cert, security.ca,
                                                               kSecondsToLookAgain);
}

// Without this check any client with a certificate of the authority could pose as the controller.
class ControllerVerifier : public tls::ExternalCertificateVerifier {
 public:
  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)> callback,
              grpc::Status* status) override {
    if (!host_.Verify(request, std::move(callback), status) || !status->ok()) return true;
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    const std::optional<Identity> who = identity_in(uris);
    if (who && who->kind == Identity::Kind::kController) return true;
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                           absl::StrCat("the server has the certificate of ", who ? to_uri(*who) : "another identity",
                                        " and not of a controller"));
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  tls::HostNameCertificateVerifier host_;  // Verifies synchronously.
};

}  // namespace

void use_folder(Security& security) {
  if (security.folder.empty()) return;
  const std::string cert = security.folder + "/tls.crt", key = security.folder + "/tls.key";
  const bool named = !security.cert.empty() || !security.key.empty();
  const bool is_there = access(cert.c_str(), F_OK) == 0 || access(key.c_str(), F_OK) == 0;
  if (security.ca.empty()) security.ca = security.folder + "/ca.crt";
  if (named || !is_there) return;
  security.cert = cert;
  security.key = key;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(absl::string_view address,
                                                                              const Security& security) {
  TITAN_RETURN_IF_ERROR(check_together(security));
  if (by_unix_socket(address) || !security.tls()) {
    TITAN_RETURN_IF_ERROR(
        check_plain(address, security, "--tls-ca, or --insecure (TITAN_INSECURE=1) on a network that you trust"));
    return plain_channel();
  }
  TITAN_RETURN_IF_ERROR(check_files(security));
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(watch(security));
  options.watch_root_certs();
  if (!security.cert.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ControllerVerifier>());
  return tls::TlsCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(absl::string_view address,
                                                                            const Security& security) {
  TITAN_RETURN_IF_ERROR(check_together(security));
  if (by_unix_socket(address) || !security.tls()) {
    TITAN_RETURN_IF_ERROR(check_plain(address, security,
                                      "--tls-ca, --tls-cert and --tls-key (`titanctl cluster issue` makes them), or "
                                      "--insecure on a network where you "
                                      "trust everyone, since anyone who reaches the port may then do everything"));
    return grpc::InsecureServerCredentials();
  }
  if (security.cert.empty() && !security.folder.empty())
    return absl::NotFoundError(absl::StrCat("--tls ", security.folder, " has no tls.crt and tls.key"));
  if (security.cert.empty())
    return absl::InvalidArgumentError("a listener with --tls-ca also needs --tls-cert and --tls-key");
  TITAN_RETURN_IF_ERROR(check_files(security));
  tls::TlsServerCredentialsOptions options(watch(security));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

bool is_private(absl::string_view address, const Security& security) { return security.tls() || is_local(address); }

std::shared_ptr<grpc::ChannelCredentials> own_channel(absl::string_view address, const Security& security) {
  if (by_unix_socket(address) || !security.tls()) return plain_channel();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<tls::FileWatcherCertificateProvider>(security.ca, kSecondsToLookAgain));
  options.watch_root_certs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> plain_channel() { return grpc::InsecureChannelCredentials(); }

namespace {

constexpr char kServiceConfig[] = R"json({
  "methodConfig": [{
    "name": [{"service": "titan.v1.JobService"}, {"service": "titan.v1.NodeService"}],
    "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"]}
  }]
})json";

}  // namespace

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetServiceConfigJSON(kServiceConfig);
  return grpc::CreateCustomChannel(address, plain_channel(), arguments);
}

void set_deadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

}  // namespace titan::rpc
