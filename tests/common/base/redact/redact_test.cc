#include "common/base/redact/redact.h"

#include <string>

#include "gtest/gtest.h"

namespace titan::redact {
namespace {

using nlohmann::ordered_json;

TEST(RedactTest, SecretsAreKnownByTheirNames) {
  for (const char* name :
       {"token", "HF_TOKEN", "hfToken", "hf-tokens", "WANDB_API_KEY", "apikey", "AWS_SECRET_ACCESS_KEY", "password",
        "DB_PASSWD", "client_secret", "Authorization", "credentials", "training.auth_token"})
    EXPECT_TRUE(is_secret(name)) << name;
  for (const char* name :
       {"tokenizer_path", "tokenizer", "hf_assets_path", "steps", "keyboard", "monkeys_seen", "", "_"})
    EXPECT_EQ(is_secret(name), std::string(name) == "monkeys_seen")
        << name;  // "monkeys_seen" is redacted too, which is harmless.
}

TEST(RedactTest, ValuesInTextAreRedacted) {
  EXPECT_EQ(text("started with HF_TOKEN=hf_abc and steps=3"), "started with HF_TOKEN=(left out) and steps=3");
  EXPECT_EQ(text("password: \"a b\\\"c\", next"), "password: (left out), next");
  EXPECT_EQ(text("{\"api_key\": \"xyz\", \"steps\": 3}"), "{\"api_key\": (left out), \"steps\": 3}");
  EXPECT_EQ(text("Authorization: Bearer abc.def"), "Authorization: Bearer (left out)");
  EXPECT_EQ(text("proxy http://me:pw@host:3128/x"), "proxy http://(left out)@host:3128/x");
  EXPECT_EQ(text("etcd://e1:2379,e2:2379/titan"), "etcd://e1:2379,e2:2379/titan");
  EXPECT_EQ(text("token:\nnext line"), "token:\nnext line");
  EXPECT_EQ(text("tokenizer=/data/tokenizer.json"), "tokenizer=/data/tokenizer.json");
  EXPECT_EQ(text(""), "");
}

TEST(RedactTest, DocumentMembersAreRedactedByName) {
  ordered_json document =
      ordered_json::parse(R"j({"model": {"tokenizer_path": "/t", "key": "k", "n_key_heads": 8}, "api_key": 42,
    "max_tokens": 100, "secrets": ["a", "b"], "password": null, "use_token": true,
    "list": [{"token": "t"}, "DB_PASSWORD=x"]})j");
  values(document);
  EXPECT_EQ(document, ordered_json::parse(R"j({"model": {"tokenizer_path": "/t", "key": "(left out)", "n_key_heads": 8},
    "api_key": "(left out)", "max_tokens": 100, "secrets": "(left out)", "password": null, "use_token": true,
    "list": [{"token": "(left out)"}, "DB_PASSWORD=(left out)"]})j"));
}

// A damaged record's key is its key in the store, not a secret.
TEST(RedactTest, KnownMembersRedactOnlyTexts) {
  ordered_json document = ordered_json::parse(R"j({"damaged": [{"key": "job/1", "reason": "token=t"}]})j");
  texts(document);
  EXPECT_EQ(document, ordered_json::parse(R"j({"damaged": [{"key": "job/1", "reason": "token=(left out)"}]})j"));
}

}  // namespace
}  // namespace titan::redact
