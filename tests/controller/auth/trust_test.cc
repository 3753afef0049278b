// A certificate is valid as long as it and its authority are, even on an open connection.

#include "controller/auth/trust.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/rpc/error.h"
#include "controller/cli/pki/certificate.h"
#include "gtest/gtest.h"

namespace titan::auth {
namespace {

class TrustTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  static pki::KeyPair authority(absl::Duration length = absl::Hours(10)) {
    return pki::make_authority("test", {kBegin, length}).value();
  }
  static std::string certificate(const pki::KeyPair& authority, absl::Duration length = absl::Hours(1)) {
    const std::string key = pki::make_key().value();
    return pki::issue(authority, {"titan:node:n1", {}, false}, key, {kBegin, length}).value();
  }
  void name(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::string refusal(const std::string& chain) { return std::string(rpc::reason(trust_.stands(chain))); }

  static inline const absl::Time kBegin = absl::FromUnixSeconds(1'800'000'000);
  const std::string path_ = ::testing::TempDir() + absl::StrCat("titan-trust-", getpid(), ".crt");
  absl::Time now_ = kBegin;
  CertificateVerifier trust_{path_, [this] { return now_; }};
};

TEST_F(TrustTest, IsValidUntilItsEnd) {
  const pki::KeyPair one = authority();
  name(one.certificate);
  const std::string chain = certificate(one);
  EXPECT_EQ(refusal(chain), "");
  now_ = kBegin + absl::Minutes(59);
  EXPECT_EQ(refusal(chain), "");
  now_ = kBegin + absl::Minutes(61);
  EXPECT_EQ(refusal(chain), "CERTIFICATE_ENDED");
  now_ = kBegin;  // The clock was wrong.
  EXPECT_EQ(refusal(chain), "");
}

// Only the first certificate counts, whatever follows it: here its authority, which some clients send too.
TEST_F(TrustTest, OnlyTheFirstCertificateOfAChainCounts) {
  const pki::KeyPair one = authority();
  name(one.certificate);
  const std::string leaf = certificate(one);
  for (const std::string& chain : {leaf + one.certificate, leaf + leaf, leaf + leaf + one.certificate}) {
    now_ = kBegin + absl::Minutes(59);
    EXPECT_EQ(refusal(chain), "");
    now_ = kBegin + absl::Minutes(61);
    EXPECT_EQ(refusal(chain), "CERTIFICATE_ENDED");
  }
}

TEST_F(TrustTest, IsValidNoLongerThanItsAuthority) {
  const pki::KeyPair brief = authority(absl::Minutes(30));
  name(brief.certificate);
  const std::string chain = certificate(brief);
  EXPECT_EQ(refusal(chain), "");
  now_ = kBegin + absl::Minutes(31);
  EXPECT_EQ(refusal(chain), "CERTIFICATE_ENDED");
}

// A change of the file takes effect within a second, and at once for callers that the old file did not trust.
TEST_F(TrustTest, ChangedFileTakesEffect) {
  const pki::KeyPair old = authority(), next = authority();
  const std::string of_old = certificate(old), of_next = certificate(next);
  name(old.certificate);
  EXPECT_EQ(refusal(of_old), "");
  EXPECT_EQ(refusal(of_next), "CERTIFICATE_UNTRUSTED");
  name(old.certificate + next.certificate);
  EXPECT_EQ(refusal(of_next), "");
  EXPECT_EQ(refusal(of_old), "");
  name(next.certificate);
  now_ += absl::Seconds(1);
  EXPECT_EQ(refusal(of_old), "CERTIFICATE_UNTRUSTED");
  EXPECT_EQ(refusal(of_next), "");
}

TEST_F(TrustTest, MissingOrBadFileChangesNothing) {
  const pki::KeyPair one = authority();
  const std::string chain = certificate(one);
  EXPECT_EQ(refusal(chain), "CERTIFICATE_UNTRUSTED");
  name(one.certificate);
  EXPECT_EQ(refusal(chain), "");
  std::filesystem::remove(path_);
  now_ += absl::Minutes(1);
  EXPECT_EQ(refusal(chain), "");
  name("no certificate");
  now_ += absl::Minutes(1);
  EXPECT_EQ(refusal(chain), "");
}

// The verifier refuses certificates that a node has signed, even if TLS would admit them.
TEST_F(TrustTest, NodeCertificatesSignNobody) {
  const pki::KeyPair one = authority();
  name(one.certificate);
  const std::string key = pki::make_key().value();
  const pki::KeyPair node = {pki::issue(one, {"titan:node:n1", {}, false}, key, {kBegin, absl::Hours(1)}).value(), key};
  EXPECT_EQ(refusal(node.certificate), "");
  EXPECT_EQ(refusal(certificate(node) + node.certificate), "CERTIFICATE_UNTRUSTED");
}

TEST_F(TrustTest, BadCertificatesAreUntrusted) {
  const pki::KeyPair one = authority();
  name(one.certificate);
  EXPECT_EQ(refusal(""), "CERTIFICATE_UNTRUSTED");
  EXPECT_EQ(refusal("no certificate"), "CERTIFICATE_UNTRUSTED");
  EXPECT_EQ(refusal(certificate(authority()) + one.certificate),
            "CERTIFICATE_UNTRUSTED");  // The last certificate is not the issuer of the first.
}

}  // namespace
}  // namespace titan::auth
