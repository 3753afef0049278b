// Certificate chains longer than one: those of a company with several authorities, and those signed by somebody who is
// not an authority.

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <fstream>
#include <memory>
#include <utility>

#include "common/service/rpc/certificate.h"
#include "tests/controller/api/tls_case.h"

namespace titan::api {
namespace {

using rpc::Identity;
using Kind = Identity::Kind;

rpc::CertificatePtr certificate_of(const pki::KeyPair& pair) {
  return std::move(rpc::certificates_in(pair.certificate).front());
}

std::string pem_of(X509* certificate) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  EXPECT_EQ(PEM_write_bio_X509(out.get(), certificate), 1);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out.get(), &bytes);
  return {bytes, static_cast<size_t>(size)};
}

rpc::KeyPtr key_of(const pki::KeyPair& pair) {
  const auto size = static_cast<int>(pair.key.size());
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new_mem_buf(pair.key.data(), size), &BIO_free);
  return {PEM_read_bio_PrivateKey(text.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free};
}

// Makes an authority that may have others below it. It signs itself, unless `above` signs it.
pki::KeyPair wide_authority(const std::string& name, const pki::KeyPair* above = nullptr) {
  pki::KeyPair made = pki::make_authority(name, {absl::Now(), absl::Hours(10)}).value();
  const pki::KeyPair& signer = above != nullptr ? *above : made;
  const rpc::CertificatePtr certificate = certificate_of(made), signers = certificate_of(signer);
  X509* const it = certificate.get();
  X509_EXTENSION_free(X509_delete_ext(it, X509_get_ext_by_NID(it, NID_basic_constraints, -1)));
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> unlimited_path(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE"), &X509_EXTENSION_free);
  EXPECT_EQ(X509_add_ext(it, unlimited_path.get(), -1), 1);
  EXPECT_EQ(X509_set_issuer_name(it, X509_get_subject_name(signers.get())), 1);
  EXPECT_GT(X509_sign(it, key_of(signer).get(), EVP_sha256()), 0);
  made.certificate = pem_of(it);
  return made;
}

class ChainTest : public TlsCase {
 protected:
  // Writes to `where` a certificate by `issuer`, the certificates `shown` after it, and those that its owner trusts.
  void certify_by(const pki::KeyPair& issuer, const std::string& where, const Identity& identity,
                  const std::string& shown, const std::string& trusted, const std::vector<std::string>& hosts = {}) {
    certify(issuer, where, identity, hosts);
    std::ofstream(where + "/tls.crt", std::ios::app) << shown;
    std::ofstream(where + "/ca.crt") << trusted;
  }
  void serve_trusting(const std::string& trusted) {
    const std::string where = controller_ + "/c";
    certify_by(office_, where, {Kind::kController, ""}, office_.certificate, trusted, {"127.0.0.1"});
    serve(where);
  }

  const pki::KeyPair company_ = wide_authority("company");
  const pki::KeyPair office_ = wide_authority("office", &company_);
};

TEST_F(ChainTest, IntermediateAuthorityIsTrustedThroughItsRoot) {
  serve_trusting(company_.certificate);
  certify_by(office_, folder("alice"), {Kind::kAdmin, "alice"}, office_.certificate, company_.certificate);
  const absl::StatusOr<v1::Job> made = submit(security(folder("alice")), "a");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->owner(), "user:alice");
  certify_by(office_, folder("n1"), {Kind::kNode, "n1"}, office_.certificate, company_.certificate);
  const absl::Status registered = register_as(security(folder("n1")), "n1");
  EXPECT_TRUE(registered.ok()) << registered;
}

// If neither end sends the office's certificate, the chain to the company is incomplete.
TEST_F(ChainTest, MissingIntermediateCertificateIsRefused) {
  serve_trusting(company_.certificate);
  certify_by(office_, folder("alice"), {Kind::kAdmin, "alice"}, "", company_.certificate);
  EXPECT_EQ(submit(security(folder("alice")), "a").status().code(), absl::StatusCode::kUnavailable);
}

// If only the office is trusted, other offices of the company are not.
TEST_F(ChainTest, IntermediateAuthorityCanBeTrustedAlone) {
  serve_trusting(office_.certificate);
  certify_by(office_, folder("alice"), {Kind::kAdmin, "alice"}, "", office_.certificate);
  const absl::StatusOr<v1::Job> made = submit(security(folder("alice")), "a");
  EXPECT_TRUE(made.ok()) << made.status();
  const pki::KeyPair sister = wide_authority("sister", &company_);
  certify_by(sister, folder("eve"), {Kind::kAdmin, "eve"}, sister.certificate + company_.certificate,
             office_.certificate);
  EXPECT_EQ(submit(security(folder("eve")), "b").status().code(), absl::StatusCode::kUnavailable);
}

// The owner of a node's key controls that node, and cannot make admins with it.
TEST_F(ChainTest, NodeCertificatesSignNobody) {
  const std::string key = pki::make_key().value();
  const pki::Subject n1 = {rpc::to_uri({Kind::kNode, "n1"}), {}, false};
  const pki::KeyPair node = {pki::issue(authority_, n1, key, {absl::Now(), absl::Hours(1)}).value(), key};
  certify_by(node, folder("alice"), {Kind::kAdmin, "alice"}, node.certificate, authority_.certificate);
  EXPECT_EQ(submit(security(folder("alice")), "a").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace titan::api
