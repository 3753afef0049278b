// If the two ends disagree on TLS or on a certificate, the user gets the cause at once.

#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/rpc/connection_fault.h"
#include "common/service/rpc/error.h"
#include "common/service/rpc/identity.h"
#include "controller/cli/client.h"
#include "controller/cli/pki/files.h"
#include "controller/cli/watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::HasSubstr;
using Role = rpc::Identity::Kind;

// Far apart, so that an immediate answer is distinguished from waiting on any machine.
constexpr absl::Duration kTimeout = absl::Seconds(60), kAtOnce = absl::Seconds(20);

class TlsMistakesTest : public ::testing::Test {
 protected:
  TlsMistakesTest() {
    std::signal(SIGPIPE,
                SIG_IGN);  // Every Titan program ignores SIGPIPE, because OpenSSL writes to sockets that may be closed.
    std::string pattern = (std::filesystem::temp_directory_path() / "tls_mistakes-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~TlsMistakesTest() override { std::filesystem::remove_all(folder_); }

  // Makes a certificate that is valid from two hours ago for `length`.
  rpc::Security certify(const std::string& name, const pki::KeyPair& authority, const rpc::Identity& identity,
                        absl::Duration length = absl::Hours(12), const std::string& host = "") {
    const std::string where = folder_ + "/" + name;
    std::vector<std::string> hosts;
    if (!host.empty()) hosts.push_back(host);
    const auto made = pki::issue_into(where, authority, {rpc::to_uri(identity), hosts, !host.empty()},
                                      {absl::Now() - absl::Hours(2), length}, pki::KeyPolicy::kNew);
    EXPECT_TRUE(made.ok()) << made;
    return {where + "/ca.crt", where + "/tls.crt", where + "/tls.key"};
  }
  void serve(const std::string& name, const pki::KeyPair& authority, absl::Duration length = absl::Hours(12),
             const std::string& host = "127.0.0.1", const rpc::Identity& identity = {Role::kController, ""}) {
    listen(rpc::server_credentials("127.0.0.1:0", certify(name, authority, identity, length, host)).value());
  }
  void listen(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  // Returns the reason with which a call and a watch end at once.
  std::string mistake(const rpc::Security& security) {
    const absl::Time start = absl::Now();
    ControllerClient client(address_, kTimeout, {.security = security});
    status_ = client.get_job("a").status();
    Stopper stopper;
    const absl::Status watched =
        watch_job(client, "a", absl::InfiniteFuture(), stopper, [](const v1::Job&) { return true; }).status();
    EXPECT_EQ(rpc::reason(watched), rpc::reason(status_));
    EXPECT_LT(absl::Now() - start, kAtOnce);
    EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
    bool has_remedy = false;
    for (const auto& [key, remedy] : rpc::metadata(status_)) has_remedy |= key == rpc::kRemedy && !remedy.empty();
    EXPECT_TRUE(has_remedy) << status_;
    return rpc::reason(status_);
  }
  // Returns the message of the last mistake().
  std::string last_message() const { return std::string(status_.message()); }

  std::string folder_;
  const pki::KeyPair ours_ = pki::make_authority("ours", {absl::Now() - absl::Hours(3), absl::Hours(24)}).value();
  const pki::KeyPair theirs_ = pki::make_authority("theirs", {absl::Now() - absl::Hours(3), absl::Hours(24)}).value();
  v1::JobService::Service jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  absl::Status status_;
};

TEST_F(TlsMistakesTest, CorrectSettingsConnect) {
  serve("controller", ours_);
  const rpc::Security admin = certify("admin", ours_, {Role::kAdmin, "root"});
  EXPECT_TRUE(rpc::connection_fault(address_, admin, absl::Seconds(10)).ok());
  EXPECT_TRUE(rpc::connection_fault(address_, {.ca = admin.ca}, absl::Seconds(10)).ok());
  EXPECT_EQ(ControllerClient(address_, kTimeout, {.security = admin}).get_job("a").status().code(),
            absl::StatusCode::kUnimplemented);  // The service has no methods: the call reached it.
}

TEST_F(TlsMistakesTest, PlaintextToATlsPort) {
  serve("controller", ours_);
  EXPECT_EQ(mistake({}), "TLS_EXPECTED");
  EXPECT_THAT(last_message(), HasSubstr(address_));
}

TEST_F(TlsMistakesTest, TlsToAPlainPort) {
  listen(grpc::InsecureServerCredentials());
  EXPECT_EQ(mistake(certify("admin", ours_, {Role::kAdmin, "root"})), "TLS_NOT_SPOKEN");
}

TEST_F(TlsMistakesTest, ProblemsOfTheControllersCertificateAreNamed) {
  const rpc::Security admin = certify("admin", ours_, {Role::kAdmin, "root"});
  serve("foreign", theirs_);
  EXPECT_EQ(mistake(admin), "CONTROLLER_CERTIFICATE_UNTRUSTED");
  EXPECT_THAT(last_message(), HasSubstr("theirs"));
  serve("expired", ours_, absl::Hours(1));
  EXPECT_EQ(mistake(admin), "CONTROLLER_CERTIFICATE_EXPIRED");
  EXPECT_THAT(last_message(), HasSubstr("expired at 20"));
  serve("other", ours_, absl::Hours(12), "c1.example");
  EXPECT_EQ(mistake(admin), "CONTROLLER_NAME_DIFFERS");
  EXPECT_THAT(last_message(), HasSubstr("but for c1.example"));
  serve("node", ours_, absl::Hours(12), "127.0.0.1", {Role::kNode, "n1"});
  EXPECT_EQ(mistake(admin), "NOT_A_CONTROLLER");
  EXPECT_THAT(last_message(), HasSubstr("titan:node:n1"));
}

TEST_F(TlsMistakesTest, ProblemsOfTheClientsCertificateAreNamed) {
  serve("controller", ours_);
  EXPECT_EQ(mistake(certify("expired", ours_, {Role::kAdmin, "root"}, absl::Hours(1))), "CERTIFICATE_EXPIRED");
  EXPECT_THAT(last_message(), HasSubstr("expired/tls.crt"));
  rpc::Security stranger = certify("stranger", theirs_, {Role::kAdmin, "root"});
  stranger.ca = certify("admin", ours_, {Role::kAdmin, "root"}).ca;
  EXPECT_EQ(mistake(stranger), "CERTIFICATE_UNTRUSTED");
  EXPECT_THAT(last_message(), HasSubstr("stranger/tls.crt"));
}

TEST_F(TlsMistakesTest, CorrectAddressIsFoundAmongWrongOnes) {
  listen(grpc::InsecureServerCredentials());
  const std::string plain = address_;
  const std::unique_ptr<grpc::Server> first = std::move(server_);
  serve("controller", ours_);
  const rpc::Security admin = certify("admin", ours_, {Role::kAdmin, "root"});
  ControllerClient client(absl::StrCat(plain, ",", address_), kTimeout, {.security = admin});
  EXPECT_EQ(client.get_job("a").status().code(), absl::StatusCode::kUnimplemented);
}

// A port without a listener is not a TLS mistake: the controller may start later, so the client waits for it.
TEST_F(TlsMistakesTest, PortWithoutAListenerIsNoController) {
  listen(grpc::InsecureServerCredentials());
  server_->Shutdown();
  const absl::Status status = ControllerClient(address_, absl::Milliseconds(300)).get_job("a").status();
  EXPECT_EQ(rpc::reason(status), kNoController) << status;
}

}  // namespace
}  // namespace titan::cli
