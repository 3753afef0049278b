// Checks when a daemon's certificate expires, and that the warning comes in time.

#include "common/service/rpc/certificate.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "openssl/pem.h"

namespace titan::rpc {
namespace {

using ::testing::HasSubstr;

const absl::Time kEnd = absl::FromUnixSeconds(1'900'000'000);  // 2030-03-17T17:46:40Z.

class CertificateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "titan-certificate-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/tls.crt";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(absl::Time end) const {
    const KeyPtr key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
    const CertificatePtr certificate(X509_new(), &X509_free);
    ASN1_TIME_set(X509_getm_notBefore(certificate.get()), 0);
    ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(end));
    X509_set_pubkey(certificate.get(), key.get());
    ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
    std::FILE* const file = std::fopen(path_.c_str(), "w");
    ASSERT_EQ(PEM_write_X509(file, certificate.get()), 1);
    std::fclose(file);
  }

  std::string folder_, path_;
};

TEST_F(CertificateTest, ReadsTheExpiryTime) {
  EXPECT_EQ(certificate_expiry(path_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(certificate_expiry_seconds(path_), std::nullopt);
  std::ofstream(path_) << "-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n";
  EXPECT_FALSE(certificate_expiry(path_).ok());
  write(kEnd);
  ASSERT_TRUE(certificate_expiry(path_).ok());
  EXPECT_EQ(*certificate_expiry(path_), kEnd);
  EXPECT_EQ(certificate_expiry_seconds(path_), 1'900'000'000.0);
}

// A file may also have the certificates of the issuers, after its own: it is valid only until the first of them
// expires.
TEST_F(CertificateTest, ChainExpiresWithItsFirstCertificate) {
  std::string chain;
  for (const absl::Duration later : {absl::Hours(3), absl::Hours(1), absl::Hours(2)}) {
    write(kEnd + later);
    std::ifstream file(path_);
    chain.append(std::istreambuf_iterator<char>(file), {});
  }
  std::ofstream(path_) << chain;
  EXPECT_EQ(*certificate_expiry(path_), kEnd + absl::Hours(1));
}

TEST_F(CertificateTest, WarnsDailyFromAMonthBeforeExpiry) {
  write(kEnd);
  CertificateExpiryWarning certificate(path_);
  const absl::Duration day = absl::Hours(24);
  EXPECT_EQ(certificate.due(kEnd - 32 * day), std::nullopt);
  EXPECT_EQ(certificate.due(kEnd - 31 * day), std::nullopt);
  const auto said = certificate.due(kEnd - 29 * day);
  ASSERT_TRUE(said);
  EXPECT_THAT(*said, HasSubstr("/tls.crt expires at 2030-03-17T17:46:40Z"));
  EXPECT_EQ(certificate.due(kEnd - 29 * day + absl::Hours(23)), std::nullopt);
  EXPECT_TRUE(certificate.due(kEnd - 28 * day));
  const auto over = certificate.due(kEnd + day);
  ASSERT_TRUE(over);
  EXPECT_THAT(*over, HasSubstr("expired at 2030"));
  write(kEnd + 365 * day);  // Renewed.
  EXPECT_EQ(certificate.due(kEnd + 3 * day), std::nullopt);
}

TEST_F(CertificateTest, WithoutACertificateThereIsNoWarning) {
  EXPECT_EQ(CertificateExpiryWarning("").due(kEnd), std::nullopt);
  EXPECT_EQ(CertificateExpiryWarning(path_).due(kEnd),
            std::nullopt);  // Other code reports that the file cannot be read.
}

}  // namespace
}  // namespace titan::rpc
