#pragma once

// The services with TLS and an authority; every connection belongs to another user of this machine.

#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/service/rpc/credentials.h"
#include "common/service/rpc/identity.h"
#include "controller/cli/pki/files.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {

class TlsCase : public ServiceCase {
 protected:
  void SetUp() override {
    gate_.owner = [](const auth::LocalConnection&) -> absl::StatusOr<uid_t> { return geteuid() + 1; };
    ServiceCase::SetUp();
    serve_with(controller_, {rpc::Identity::Kind::kController, ""}, {"127.0.0.1"});
  }

  void certify(const pki::KeyPair& authority, const std::string& where, const rpc::Identity& identity,
               const std::vector<std::string>& hosts = {}) {
    const pki::Subject subject = {rpc::to_uri(identity), hosts, !hosts.empty()};
    const auto made = pki::issue_into(where, authority, subject, {absl::Now(), absl::Hours(1)}, pki::KeyPolicy::kNew);
    ASSERT_TRUE(made.ok()) << made;
  }
  static rpc::Security security(const std::string& where) {
    return {where + "/ca.crt", where + "/tls.crt", where + "/tls.key"};
  }
  void serve_with(const std::string& where, const rpc::Identity& identity, const std::vector<std::string>& hosts) {
    certify(authority_, where, identity, hosts);
    serve(where);
  }
  // Serves with the files that are already there.
  void serve(const std::string& where) {
    stop();
    gate_.authorities = where + "/ca.crt";
    credentials_ = rpc::server_credentials("127.0.0.1:0", security(where)).value();
    start("127.0.0.1:0");
  }
  std::string folder(const std::string& name) { return folder_ + "/" + name; }

  std::shared_ptr<grpc::Channel> connect(const rpc::Security& security) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const std::string address = absl::StrCat("127.0.0.1:", server_->port());
    return grpc::CreateCustomChannel(address, rpc::channel_credentials(address, security).value(), arguments);
  }
  // Connects as clients of other TLS libraries and languages do: with the certificate alone, without those that signed
  // it.
  std::shared_ptr<grpc::Channel> connect_with_leaf_alone(const std::string& where) {
    namespace tls = grpc::experimental;
    const auto text = [](const std::string& path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    tls::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
        std::vector<tls::IdentityKeyCertPair>{{text(where + "/tls.key"), text(where + "/tls.crt")}}));
    options.watch_identity_key_cert_pairs();
    options.set_verify_server_certs(false);
    options.set_check_call_host(false);
    options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()), tls::TlsCredentials(options),
                                     arguments);
  }
  absl::StatusOr<v1::Job> submit(const rpc::Security& security, const std::string& id) {
    jobs_ = v1::JobService::NewStub(connect(security));
    v1::Job made;
    const absl::Status status = create(job(id), &made);
    if (!status.ok()) return status;
    return made;
  }
  absl::Status register_as(const rpc::Security& security, const std::string& node) {
    const auto stub = v1::WorkerService::NewStub(connect(security));
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(10));
    const auto session = stub->Session(&context);
    v1::WorkerMessage message;
    message.mutable_register_()->set_node(node);
    message.mutable_register_()->set_instance("i");
    session->Write(message);
    v1::ControllerMessage answer;
    if (session->Read(&answer) && answer.has_welcome()) return absl::OkStatus();
    return rpc::from_grpc(session->Finish());
  }

  // Like a real authority it outlives every certificate that it signs, so that a check of the wrong one of the two is
  // noticed.
  const pki::KeyPair authority_ = pki::make_authority("test", {absl::Now(), absl::Hours(10)}).value();
  std::string controller_ = ::testing::TempDir() + absl::StrCat("titan-tls-", getpid(), "-", ++count_);
  static inline int count_ = 0;

  void TearDown() override {
    ServiceCase::TearDown();
    std::filesystem::remove_all(controller_);
  }
};

}  // namespace titan::api
