// Digests name files and tokens permanently: they must match the standards, however the input is split.

#include "common/base/digest/digest.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace titan::digest {
namespace {

// Digest of "abc", the one-block example of FIPS 180.
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(DigestTest, Sha256MatchesTheStandard) {
  EXPECT_EQ(sha256_hex("abc"), kAbc);
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), absl::HexStringToBytes(kAbc));
  EXPECT_NE(sha256_hex(std::string_view("a\0b", 3)), sha256_hex("a")) << "a zero byte does not end a text";
}

TEST(DigestTest, DigestDoesNotDependOnThePieces) {
  Digest pieces(EVP_sha256());
  pieces.add("a", 1);
  pieces.add("", 0);
  pieces.add("bc", 2);
  EXPECT_EQ(pieces.hex(), kAbc);
}

TEST(DigestTest, KindsDiffer) {
  Digest sha1(EVP_sha1());
  sha1.add("abc", 3);
  EXPECT_EQ(sha1.hex(), "a9993e364706816aba3e25717850c26c9cd0d89d");
}

}  // namespace
}  // namespace titan::digest
