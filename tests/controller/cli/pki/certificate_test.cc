#include "controller/cli/pki/certificate.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "common/service/rpc/certificate.h"
#include "controller/cli/pki/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::pki {
namespace {

using ::testing::HasSubstr;

const Validity kDay = {absl::Now(), absl::Hours(24)};

X509* parse(const std::string& pem) {
  BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return certificate;
}

// Returns the result of OpenSSL's own check of a certificate for a purpose, with this authority.
int verify(const std::string& authority, const std::string& pem, int purpose, absl::Time at) {
  X509* const root = parse(authority);
  X509* const leaf = parse(pem);
  X509_STORE* const store = X509_STORE_new();
  X509_STORE_add_cert(store, root);
  X509_STORE_CTX* const context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, leaf, nullptr);
  X509_STORE_CTX_set_purpose(context, purpose);
  X509_STORE_CTX_set_flags(context, X509_V_FLAG_X509_STRICT);
  X509_STORE_CTX_set_time(context, 0, absl::ToTimeT(at));
  X509_verify_cert(context);
  const int error = X509_STORE_CTX_get_error(context);
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  X509_free(leaf);
  X509_free(root);
  return error;
}

class CertificateTest : public ::testing::Test {
 protected:
  CertificateTest() { mkdtemp(folder_.data()); }
  ~CertificateTest() override { std::filesystem::remove_all(folder_); }

  static mode_t mode(const std::string& path) {
    struct stat file {};
    return stat(path.c_str(), &file) == 0 ? file.st_mode & 0777 : 0;
  }
  static std::string text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const KeyPair authority_ = make_authority("test", kDay).value();
  const std::string key_ = make_key().value();
  std::string folder_ = ::testing::TempDir() + "titan-pki-XXXXXX";
};

TEST_F(CertificateTest, IsValidOnlyForItsPurposeAndTime) {
  const std::string server =
      issue(authority_, {"titan:controller", {"c1.example", "10.0.0.1"}, true}, key_, kDay).value();
  const std::string client = issue(authority_, {"titan:node:n1", {}, false}, key_, kDay).value();
  const std::string root = authority_.certificate;
  EXPECT_EQ(verify(root, server, X509_PURPOSE_SSL_SERVER, absl::Now()), X509_V_OK);
  EXPECT_EQ(verify(root, server, X509_PURPOSE_SSL_CLIENT, absl::Now()), X509_V_ERR_INVALID_PURPOSE);
  EXPECT_EQ(verify(root, client, X509_PURPOSE_SSL_CLIENT, absl::Now()), X509_V_OK);
  EXPECT_EQ(verify(root, client, X509_PURPOSE_SSL_SERVER, absl::Now()), X509_V_ERR_INVALID_PURPOSE);
  EXPECT_EQ(verify(root, client, X509_PURPOSE_SSL_CLIENT, absl::Now() + absl::Hours(25)), X509_V_ERR_CERT_HAS_EXPIRED);
  const KeyPair other = make_authority("test", kDay).value();
  EXPECT_NE(verify(other.certificate, client, X509_PURPOSE_SSL_CLIENT, absl::Now()), X509_V_OK);
}

// Daemons warn before their own certificate expires, so the authority must not expire earlier.
TEST_F(CertificateTest, EndsNoLaterThanItsAuthority) {
  const Validity week = {kDay.from, absl::Hours(7 * 24)}, after = {kDay.from + absl::Hours(25), absl::Hours(1)};
  const Subject node = {"titan:node:n1", {}, false};
  const std::string week_certificate = issue(authority_, node, key_, week).value();
  const auto end = [](const std::string& pem) { return rpc::end_of(*rpc::certificates_in(pem).front()); };
  EXPECT_EQ(end(week_certificate), end(authority_.certificate));
  const absl::Status late = issue(authority_, node, key_, after).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("init-ca"));
}

TEST_F(CertificateTest, NamesItsHosts) {
  const std::string pem =
      issue(authority_, {"titan:controller", {"c1.example", "10.0.0.1", "::1"}, true}, key_, kDay).value();
  X509* const certificate = parse(pem);
  EXPECT_EQ(X509_check_host(certificate, "c1.example", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate, "c2.example", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_ip_asc(certificate, "10.0.0.1", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(certificate, "::1", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(certificate, "10.0.0.2", 0), 0);
  X509_free(certificate);
}

// A host name must not add another extension.
TEST_F(CertificateTest, BadHostNamesAreRefused) {
  for (const char* bad : {"", "a b", "a,URI:titan:controller", "host:7700", "https://host", "*.example"}) {
    const auto made = issue(authority_, {"titan:controller", {bad}, true}, key_, kDay);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr("--address")) << bad;
  }
}

TEST_F(CertificateTest, BadIdentityNamesAreRefused) {
  for (const char* bad :
       {"titan:user:x,URI:titan:admin:y", "titan:node:*", "titan:user:two words", "titan:user:x\ny"}) {
    EXPECT_EQ(issue(authority_, {bad, {}, false}, key_, kDay).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST_F(CertificateTest, KeyThatIsNotTheAuthoritysSignsNothing) {
  const KeyPair mixed = {authority_.certificate, key_};
  EXPECT_FALSE(issue(mixed, {"titan:node:n1", {}, false}, key_, kDay).ok());
  EXPECT_FALSE(issue({"", ""}, {"titan:node:n1", {}, false}, key_, kDay).ok());
}

TEST_F(CertificateTest, KeysArePrivateAndNeverReplacedSilently) {
  ASSERT_TRUE(write_authority(folder_ + "/ca", authority_).ok());
  EXPECT_EQ(mode(folder_ + "/ca"), 0700U);
  EXPECT_EQ(mode(folder_ + "/ca/ca.key"), 0600U);
  EXPECT_EQ(write_authority(folder_ + "/ca", authority_).code(), absl::StatusCode::kAlreadyExists);
  const KeyPair read = read_authority(folder_ + "/ca").value();
  const Subject node = {"titan:node:n1", {}, false};
  const std::string out = folder_ + "/n1";
  EXPECT_EQ(issue_into(out, read, node, kDay, KeyPolicy::kKept).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(issue_into(out, read, node, kDay, KeyPolicy::kNew).ok());
  EXPECT_EQ(mode(out + "/tls.key"), 0600U);
  const std::string key = text(out + "/tls.key"), certificate = text(out + "/tls.crt");
  const absl::Status again = issue_into(out, read, node, kDay, KeyPolicy::kNew);
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--renew"));
  EXPECT_EQ(text(out + "/tls.crt"), certificate);
  ASSERT_TRUE(issue_into(out, read, node, kDay, KeyPolicy::kKept).ok());
  EXPECT_EQ(text(out + "/tls.key"), key);
  EXPECT_NE(text(out + "/tls.crt"), certificate);
}

// After a full disk no partial file remains: the same command works once there is space.
TEST_F(CertificateTest, FullDiskLeavesNoPartialKey) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status made = write_authority(folder_ + "/ca", authority_);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(made.message()), AllOf(HasSubstr("ca.key"), HasSubstr("File too large"))) << made;
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/ca"));
  EXPECT_TRUE(write_authority(folder_ + "/ca", authority_).ok());
}

// A certificate of a new authority can be installed while others still have one of the old authority: no step of a
// rotation cuts anybody off.
TEST_F(CertificateTest, RenewalKeepsOldAuthoritiesTrusted) {
  const Subject node = {"titan:node:n1", {}, false};
  const std::string out = folder_ + "/n1";
  ASSERT_TRUE(issue_into(out, authority_, node, kDay, KeyPolicy::kNew).ok());
  const KeyPair next = make_authority("next", kDay).value();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(issue_into(out, next, node, kDay, KeyPolicy::kKept).ok());
  EXPECT_EQ(text(out + "/ca.crt"), authority_.certificate + next.certificate);
}

}  // namespace
}  // namespace titan::pki
