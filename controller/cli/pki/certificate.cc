#include "controller/cli/pki/certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/service/rpc/certificate.h"

namespace titan::pki {
namespace {

constexpr absl::Duration kClockSkew = absl::Minutes(5);

template <typename T, void (*free)(T*)>
struct Free {
  void operator()(T* one) const { free(one); }
};
struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION, X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Free<BIGNUM, BN_free>>;
using Bio = std::unique_ptr<BIO, FreeBio>;

absl::Status failed(absl::string_view what) {
  std::array<char, 256> why = {};
  ERR_error_string_n(ERR_get_error(), why.data(), why.size());
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("cannot ", what, ": ", why.data()));
}

Bio reading(absl::string_view text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : "";
}

absl::StatusOr<Key> read_key(absl::string_view pem) {
  Key key(PEM_read_bio_PrivateKey(reading(pem).get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return failed("read a private key");
  return key;
}

absl::StatusOr<Certificate> read_certificate(absl::string_view pem) {
  Certificate certificate(PEM_read_bio_X509(reading(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return failed("read a certificate");
  return certificate;
}

absl::StatusOr<std::string> to_pem(X509& certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), &certificate) != 1) return failed("write a certificate");
  return text_of(bio.get());
}

bool add(X509& certificate, X509V3_CTX& context, int kind, const std::string& value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(&certificate, extension.get(), -1) == 1;
}

bool set_serial(X509& certificate) {
  std::array<unsigned char, 16> random;
  if (RAND_bytes(random.data(), random.size()) != 1) return false;
  random[0] &= 0x7F;  // Positive, and equally long for all.
  const Number number(BN_bin2bn(random.data(), random.size(), nullptr));
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(&certificate)) != nullptr;
}

bool set_validity(X509& certificate, const Validity& validity) {
  const time_t from = absl::ToTimeT(validity.from - kClockSkew), until = absl::ToTimeT(validity.from + validity.length);
  return ASN1_TIME_set(X509_getm_notBefore(&certificate), from) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(&certificate), until) != nullptr;
}

bool set_name(X509& certificate, absl::string_view name) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(name.data());
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(&certificate), "CN", MBSTRING_UTF8, bytes,
                                    static_cast<int>(name.size()), -1, 0) == 1;
}

// Sets everything but issuer, extensions and signature.
absl::StatusOr<Certificate> begin(absl::string_view name, EVP_PKEY& key, const Validity& validity) {
  Certificate made(X509_new());
  const bool ok = made != nullptr && X509_set_version(made.get(), 2) == 1 && set_serial(*made) &&
                  set_validity(*made, validity) && set_name(*made, name) && X509_set_pubkey(made.get(), &key) == 1;
  if (!ok) return failed("make a certificate");
  return made;
}

bool is_host(absl::string_view host) {
  return !host.empty() && host.size() <= 253 &&
         host.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:") == host.npos;
}

bool is_address(const std::string& host) {
  ASN1_OCTET_STRING* const address = a2i_IPADDRESS(host.c_str());
  ASN1_OCTET_STRING_free(address);
  ERR_clear_error();
  return address != nullptr;
}

absl::StatusOr<std::string> alternative_names(const Subject& subject) {
  constexpr absl::string_view kInUri = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@+-:";
  if (absl::string_view(subject.uri).find_first_not_of(kInUri) != absl::string_view::npos)
    return absl::InvalidArgumentError(
        absl::StrCat("'", subject.uri, "' is not a valid name: a name is made of letters, digits and . _ @ + -"));
  std::vector<std::string> names = {absl::StrCat("URI:", subject.uri)};
  for (const std::string& host : subject.hosts) {
    const bool address = is_address(host);
    if (!is_host(host) || (!address && host.find(':') != std::string::npos))
      return absl::InvalidArgumentError(
          absl::StrCat("--address is '", host, "': it must be a host's name or IP address"));
    names.push_back(absl::StrCat(address ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

// No certificate ends later than its issuer's, so that the end that is reported, and warned about, holds.
absl::StatusOr<Validity> within(const X509& issuer, const Validity& wanted) {
  const absl::Time last = rpc::end_of(issuer);
  if (last > wanted.from) return Validity{wanted.from, std::min(wanted.length, last - wanted.from)};
  return absl::FailedPreconditionError(absl::StrCat("the authority's certificate ended at ",
                                                    absl::FormatTime(last, absl::UTCTimeZone()),
                                                    ": make another with `titanctl cluster init-ca`"));
}

}  // namespace

absl::StatusOr<std::string> make_key() {
  const Key key(EVP_EC_gen("P-256"));
  const Bio bio(BIO_new(BIO_s_mem()));
  if (key == nullptr || PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return failed("make a private key");
  return text_of(bio.get());
}

absl::StatusOr<KeyPair> make_authority(absl::string_view name, const Validity& validity) {
  KeyPair pair;
  TITAN_ASSIGN_OR_RETURN(pair.key, make_key());
  TITAN_ASSIGN_OR_RETURN(const Key key, read_key(pair.key));
  TITAN_ASSIGN_OR_RETURN(const Certificate made, begin(name, *key, validity));
  X509V3_CTX context;
  X509V3_set_ctx(&context, made.get(), made.get(), nullptr, nullptr, 0);
  const bool ok = X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) == 1 &&
                  add(*made, context, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                  add(*made, context, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                  add(*made, context, NID_subject_key_identifier, "hash") &&
                  X509_sign(made.get(), key.get(), EVP_sha256()) > 0;
  if (!ok) return failed("make an authority");
  TITAN_ASSIGN_OR_RETURN(pair.certificate, to_pem(*made));
  return pair;
}

absl::StatusOr<std::string> issue(const KeyPair& authority, const Subject& subject, absl::string_view key_pem,
                                  const Validity& validity) {
  TITAN_ASSIGN_OR_RETURN(const Certificate issuer, read_certificate(authority.certificate));
  TITAN_ASSIGN_OR_RETURN(const Key issuer_key, read_key(authority.key));
  TITAN_ASSIGN_OR_RETURN(const Key key, read_key(key_pem));
  TITAN_ASSIGN_OR_RETURN(const std::string names, alternative_names(subject));
  TITAN_ASSIGN_OR_RETURN(const Validity counts, within(*issuer, validity));
  TITAN_ASSIGN_OR_RETURN(const Certificate made, begin(subject.uri, *key, counts));
  if (X509_check_private_key(issuer.get(), issuer_key.get()) != 1)
    return failed("sign: the authority's key does not belong to its certificate");
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer.get(), made.get(), nullptr, nullptr, 0);
  const bool ok = X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) == 1 &&
                  add(*made, context, NID_basic_constraints, "critical,CA:FALSE") &&
                  add(*made, context, NID_key_usage, "critical,digitalSignature") &&
                  add(*made, context, NID_ext_key_usage, subject.server ? "serverAuth" : "clientAuth") &&
                  add(*made, context, NID_subject_key_identifier, "hash") &&
                  add(*made, context, NID_authority_key_identifier, "keyid") &&
                  add(*made, context, NID_subject_alt_name, names) &&
                  X509_sign(made.get(), issuer_key.get(), EVP_sha256()) > 0;
  if (!ok) return failed("make a certificate");
  return to_pem(*made);
}

}  // namespace titan::pki
