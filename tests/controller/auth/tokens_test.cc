#include "controller/auth/tokens.h"

#include "common/base/digest/digest.h"
#include "common/service/rpc/error.h"
#include "controller/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::auth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

class TokensTest : public ::testing::Test {
 protected:
  TokensTest() { load(); }

  void load() {
    tokens_ = Tokens::load(store_, [this] { return now_; }).value();
  }
  static TokenRecord token(const std::string& id) {
    return {id, "alice", Role::kOperator, {"vision"}, digest::sha256_hex(kSecret), 0, 0, "local:0"};
  }
  absl::StatusOr<TokenRecord> create(const TokenRecord& wanted) {
    absl::StatusOr<TokenRecord> result = absl::UnknownError("not answered");
    tokens_->create(wanted, [&result](const absl::StatusOr<TokenRecord>& made) { result = made; });
    store_.run_pending();
    return result;
  }
  absl::StatusOr<TokenRecord> revoke(const std::string& id) {
    absl::StatusOr<TokenRecord> result = absl::UnknownError("not answered");
    tokens_->revoke(id, [&result](const absl::StatusOr<TokenRecord>& gone) { result = gone; });
    store_.run_pending();
    return result;
  }
  std::string reason(const std::string& text) { return rpc::reason(tokens_->caller(text).status()); }
  static std::string text(const std::string& id, const std::string& secret = kSecret) {
    return "titan_" + id + "_" + secret;
  }

  store::MemoryStore store_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Tokens> tokens_;
};

TEST_F(TokensTest, TokenNamesTheCallerAndItsRole) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  const Caller caller = tokens_->caller(text("abcdefgh")).value();
  EXPECT_EQ(caller.actor, "user:alice");
  EXPECT_EQ(caller.role, Role::kOperator);
  EXPECT_THAT(caller.projects, ElementsAre("vision"));
  EXPECT_EQ(caller.node, "");
  EXPECT_EQ(caller.token, "abcdefgh");
}

TEST_F(TokensTest, OtherTextsAreUnknownTokens) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  std::string near = kSecret;
  near.back() = '0';
  for (const std::string& other : {std::string(), std::string("titan_"), std::string(kSecret), text("abcdefgh", near),
                                   text("abcdefgh", ""), text("abcdefgi"), text("abcdefgh") + "0", text("ABCDEFGH"),
                                   "titan_abcdefgh_" + digest::sha256_hex(kSecret), " " + text("abcdefgh")}) {
    EXPECT_EQ(reason(other), "TOKEN_UNKNOWN") << other;
  }
}

// A reader of the store or of its backup learns no secret.
TEST_F(TokensTest, StoreHasOnlyTheDigest) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  const auto records = store::scan_all(store_, kTokensPrefix).value();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].key, "token/abcdefgh");
  EXPECT_THAT(records[0].value, HasSubstr(digest::sha256_hex(kSecret)));
  EXPECT_THAT(records[0].value, Not(HasSubstr(kSecret)));
}

TEST_F(TokensTest, IsValidOnceDurable) {
  absl::Status answered = absl::UnknownError("not answered");
  tokens_->create(token("abcdefgh"), [&answered](const auto& made) { answered = made.status(); });
  EXPECT_EQ(reason(text("abcdefgh")), "TOKEN_UNKNOWN");
  store_.run_pending();
  EXPECT_TRUE(answered.ok());
  EXPECT_EQ(reason(text("abcdefgh")), "");
}

// A restarted controller, or another one that takes over, knows the tokens.
TEST_F(TokensTest, TokensSurviveReopeningTheStore) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  ASSERT_TRUE(create(token("abcdefgi")).ok());
  ASSERT_TRUE(revoke("abcdefgi").ok());
  load();
  EXPECT_EQ(tokens_->caller(text("abcdefgh"))->actor, "user:alice");
  EXPECT_EQ(reason(text("abcdefgi")), "TOKEN_UNKNOWN");
  ASSERT_EQ(tokens_->list().size(), 1U);
  EXPECT_EQ(tokens_->list()[0].creator, "local:0");
}

// A token is invalid from the moment of the request, even while the disk is slow.
TEST_F(TokensTest, RevokedTokensAreInvalidAtOnce) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  EXPECT_TRUE(tokens_->stands("abcdefgh", digest::sha256_hex(kSecret)).ok());
  bool answered = false;
  tokens_->revoke("abcdefgh", [&answered](const auto&) { answered = true; });
  EXPECT_FALSE(answered);
  EXPECT_EQ(reason(text("abcdefgh")), "TOKEN_UNKNOWN");
  EXPECT_EQ(rpc::reason(tokens_->stands("abcdefgh", digest::sha256_hex(kSecret))), "TOKEN_REVOKED");
  store_.run_pending();
  EXPECT_TRUE(answered);
  EXPECT_EQ(revoke("abcdefgh").status().code(), absl::StatusCode::kNotFound);
}

// The creator of a token chooses its id: a new token with a revoked token's id does not keep that token's connections
// open.
TEST_F(TokensTest, NewTokenWithARevokedIdIsDifferent) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  const Caller before = tokens_->caller(text("abcdefgh")).value();
  ASSERT_TRUE(revoke("abcdefgh").ok());
  TokenRecord next = token("abcdefgh");
  const std::string secret = std::string(kSecret).replace(0, 1, "f");
  next.digest = digest::sha256_hex(secret);
  ASSERT_TRUE(create(next).ok());
  EXPECT_EQ(rpc::reason(tokens_->stands(before.token, before.token_digest)), "TOKEN_REVOKED");
  const Caller after = tokens_->caller(text("abcdefgh", secret)).value();
  EXPECT_TRUE(tokens_->stands(after.token, after.token_digest).ok());
}

TEST_F(TokensTest, ExpiresAtItsTime) {
  TokenRecord short_lived = token("abcdefgh");
  short_lived.expire_time_s = absl::ToUnixSeconds(now_) + 60;
  ASSERT_TRUE(create(short_lived).ok());
  now_ += absl::Seconds(59);
  EXPECT_EQ(reason(text("abcdefgh")), "");
  EXPECT_TRUE(tokens_->stands("abcdefgh", digest::sha256_hex(kSecret)).ok());
  now_ += absl::Seconds(1);
  EXPECT_EQ(reason(text("abcdefgh")), "TOKEN_EXPIRED");
  EXPECT_EQ(rpc::reason(tokens_->stands("abcdefgh", digest::sha256_hex(kSecret))), "TOKEN_EXPIRED");
  load();
  EXPECT_EQ(reason(text("abcdefgh")), "TOKEN_EXPIRED");
}

// A client whose answer was lost repeats the request; different contents under the same id are an error.
TEST_F(TokensTest, RepeatedRequestGivesTheSameToken) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  EXPECT_TRUE(create(token("abcdefgh")).ok());
  TokenRecord other = token("abcdefgh");
  other.role = Role::kAdmin;
  other.projects = {kAllProjects};
  EXPECT_EQ(create(other).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(tokens_->caller(text("abcdefgh"))->role, Role::kOperator);
}

TEST_F(TokensTest, MistakesNameTheField) {
  const auto field = [this](const std::function<void(TokenRecord&)>& spoil) {
    TokenRecord bad = token("abcdefgh");
    spoil(bad);
    const auto violations = rpc::field_violations(create(bad).status());
    return violations.empty() ? "none" : violations[0].field;
  };
  EXPECT_EQ(field([](TokenRecord& t) { t.id = "short"; }), "token.id");
  EXPECT_EQ(field([](TokenRecord& t) { t.id = "abcdefgh/x"; }), "token.id");
  EXPECT_EQ(field([](TokenRecord& t) { t.user = "two words"; }), "token.user");
  EXPECT_EQ(field([](TokenRecord& t) { t.role = Role::kNone; }), "token.role");
  EXPECT_EQ(field([](TokenRecord& t) { t.projects = {}; }), "token.projects");
  EXPECT_EQ(field([](TokenRecord& t) { t.projects = {"a/b"}; }), "token.projects");
  EXPECT_EQ(field([](TokenRecord& t) { t.role = Role::kAdmin; }), "token.projects");
  EXPECT_EQ(field([](TokenRecord& t) { t.digest = "abc"; }), "secret_sha256");
  EXPECT_EQ(field([](TokenRecord& t) { t.expire_time_s = 5; }), "token.expire_time");
}

// A damaged record admits nobody, and does not affect other tokens.
TEST_F(TokensTest, DamagedRecordsAdmitNobody) {
  ASSERT_TRUE(create(token("abcdefgh")).ok());
  const std::string good = store_.get("token/abcdefgh").value()->value;
  for (const std::string& bad :
       {std::string("{}"), std::string("nonsense"),
        std::string(R"({"user":"x","role":"root","projects":["*"],"sha256":"","expires":0})"),
        std::string(R"({"user":"x","role":"admin","projects":["*"],"sha256":"","expires":0})")}) {
    store_.commit({{store::put("token/abcdefgi", bad)}, store::WhenFull::kRetry, {}}, [](const auto&) {});
    store_.run_pending();
    load();
    EXPECT_EQ(tokens_->list().size(), 1U) << bad;
    EXPECT_EQ(reason(text("abcdefgi", "")), "TOKEN_UNKNOWN") << bad;
    EXPECT_EQ(reason(text("abcdefgh")), "") << bad;
  }
}

}  // namespace
}  // namespace titan::auth
