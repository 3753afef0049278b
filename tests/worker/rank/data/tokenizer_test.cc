#include "worker/rank/data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/tokenizer/normal_forms.h"
#include "worker/rank/data/tokenizer/split_pattern.h"

namespace titan::data {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::byte_tokenizer;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

std::vector<int32_t> encode(Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens;
  EXPECT_TRUE(tokenizer.encode(text, tokens).ok());
  return tokens;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load(const json& file) {
  const Folder folder;
  folder.write_tokenizer(file);
  return Tokenizer::load(folder.path());
}

TEST(TokenizerTest, BytesMergesAndSpecialTokens) {
  json file = byte_tokenizer();
  file["model"]["vocab"]["ab"] = 300;
  file["model"]["vocab"]["\u0120ab"] = 301;  // " ab"
  file["model"]["merges"] = {"a b", json::array({"\u0120", "ab"})};
  auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode(**tokenizer, "ab abc<eos>"), ElementsAre(300, 301, 'c', 257));
  std::vector<int32_t> document;
  ASSERT_TRUE((*tokenizer)->encode_document("ab", document).ok());
  EXPECT_THAT(document, ElementsAre(256, 300, 257));
  EXPECT_EQ((*tokenizer)->decode({256, 300, 301, 257, 9999, -1}), "<bos>ab ab<eos>");
  EXPECT_EQ((*tokenizer)->vocab_size(), 260);
  EXPECT_EQ((*tokenizer)->max_id(), 301);
  EXPECT_EQ((*tokenizer)->bos_id(), 256);
}

// The lowest rank merges first, wherever it is.
TEST(TokenizerTest, MergesByRankNotByPosition) {
  json file = byte_tokenizer();
  file["model"]["vocab"].update({{"bc", 300}, {"ab", 301}, {"abc", 302}});
  file["model"]["merges"] = {"b c", "a b", "ab c"};
  auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode(**tokenizer, "abc"), ElementsAre('a', 300));
  file["model"]["ignore_merges"] = true;
  tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode(**tokenizer, "abc"), ElementsAre(302));
}

// Long words take another code path than short ones, with the same tokens.
TEST(TokenizerTest, LongWords) {
  json file = byte_tokenizer();
  file["model"]["vocab"].update({{"aa", 300}, {"aaaa", 301}});
  file["model"]["merges"] = {"a a", "aa aa"};
  auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (int length : {1, 2, 3, 47, 49, 63, 64, 65, 66, 67, 1000, 100001}) {
    std::vector<int32_t> expected(length / 4, 301);
    if (length % 4 >= 2) expected.push_back(300);
    if (length % 2 == 1) expected.push_back('a');
    ASSERT_EQ(encode(**tokenizer, std::string(length, 'a')), expected) << length;
  }
}

TEST(TokenizerTest, TemplatesAddBosOnce) {
  json file = byte_tokenizer();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {256}}}}}}};
  auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> document;
  ASSERT_TRUE((*tokenizer)->encode_document("x", document).ok());
  EXPECT_THAT(document, ElementsAre(256, 'x', 257));
}

// CLIP's kind: the last symbol of a word carries its end, and a text stands between two tokens.
TEST(TokenizerTest, WordEndsAreSymbols) {
  json file = byte_tokenizer();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"behavior", "Removed"}, {"invert", true}, {"pattern", {{"Regex", "\\p{L}+"}}}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  file["post_processor"] = {
      {"type", "RobertaProcessing"}, {"cls", {"<bos>", 256}}, {"sep", {"<eos>", 257}}, {"trim_offsets", false}};
  file["model"]["end_of_word_suffix"] = "</w>";
  file["model"]["unk_token"] = "<eos>";
  file["model"]["vocab"].update({{"a</w>", 300}, {"b</w>", 301}, {"ab</w>", 302}, {"ab", 303}, {"<eos>", 257}});
  file["model"]["merges"] = {"a b</w>", "a b"};
  auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode(**tokenizer, "ab  a aba abc"), ElementsAre(302, 300, 303, 300, 303, 257));
  EXPECT_THAT((*tokenizer)->prefix(), ElementsAre(256));
  std::vector<int32_t> document;
  ASSERT_TRUE((*tokenizer)->encode_document("a", document).ok());
  EXPECT_THAT(document, ElementsAre(256, 300, 257));
  EXPECT_EQ((*tokenizer)->decode({302, 303, 300}), "ab aba");
  EXPECT_EQ((*tokenizer)->spelling(302), "ab</w>");
  EXPECT_EQ((*tokenizer)->bytes(302), "ab");
}

TEST(TokenizerTest, TextHasToBeUtf8) {
  auto tokenizer = load(byte_tokenizer());
  ASSERT_TRUE(tokenizer.ok());
  for (const std::string text : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    std::vector<int32_t> tokens = {7};
    EXPECT_EQ((*tokenizer)->encode_document(text, tokens).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(tokens, ElementsAre(7));
  }
}

struct Malformed {
  const char* patch;  // JSON merge patch on the byte tokenizer.
  const char* message;
};

constexpr Malformed kMalformed[] = {
    {R"({"model": null})", "has no \"model\" object"},
    {R"({"model": {"type": "WordPiece"}})", "model.type is \"WordPiece\""},
    {R"({"model": {"type": "Unigram"}})", "pre_tokenizer \"ByteLevel\" with a model of type Unigram"},
    {R"({"model": {"vocab": null}})", "model.vocab is not an object"},
    {R"({"model": {"vocab": {"a": -1}}})", "token \"a\" has no id between"},
    {R"({"model": {"vocab": {"a": "x"}}})", "token \"a\" has no id between"},
    {R"({"model": {"vocab": {"a": 99999999}}})", "between 0 and 4194303"},
    {R"({"model": {"vocab": {"a": 98}}})", "share id 98"},
    {R"({"model": {"merges": null}})", "model.merges is not an array"},
    {R"({"model": {"merges": ["ab"]}})", "model.merges[0]: \"ab\" is not a pair"},
    {R"({"model": {"merges": ["a b c"]}})", "model.merges[0]"},
    {R"({"model": {"merges": [["a"]]}})", "model.merges[0]: [\"a\"]"},
    {R"({"model": {"merges": ["a b"]}})", "\"ab\" is not in the vocabulary"},
    {R"({"model": {"unk_token": "<unk>"}})", "model.unk_token \"<unk>\" is not in"},
    {R"({"model": {"dropout": 0.1}})", "model.dropout is 0.1"},
    {R"({"model": {"byte_fallback": true}})", "model.byte_fallback"},
    {R"({"pre_tokenizer": null, "model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix is \"</w>\""},
    {R"({"model": {"continuing_subword_prefix": "##"}})", "model.continuing_subword_prefix is \"##\""},
    {R"({"normalizer": {"type": "BertNormalizer"}})", "normalizer \"BertNormalizer\" is not supported"},
    {R"({"normalizer": {"type": "Sequence"}})", "a \"Sequence\" without \"normalizers\""},
    {R"({"normalizer": {"type": "Replace", "pattern": {}}})", "pattern holds neither"},
    {R"({"normalizer": {"type": "Replace", "pattern": {"Regex": "\\w"}}})", "the escape \\w"},
    {R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}})", "is not base64"},
    {R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}})",
     "precompiled_charsmap holds 4 bytes"},
    {R"({"pre_tokenizer": {"type": "Whitespace"}})", "pre_tokenizer \"Whitespace\" is not supported"},
    {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "__"}})", "replacement is not one character"},
    {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}})",
     "prepend_scheme is \"last\""},
    {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "add_prefix_space": false}})",
     "add_prefix_space is false"},
    {R"({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]}})",
     "prepend_scheme \"first\" after"},
    {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}})",
     "\"Digits\" after \"ByteLevel\""},
    {R"({"pre_tokenizer": null, "decoder": {"type": "CTC"}})", "decoder \"CTC\" is not supported"},
    {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "vocab": {}}})", "model.vocab is not an array"},
    {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "vocab": [["a"]]}})",
     "model.vocab[0]: [\"a\"] is not a token"},
    {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}})", "model.unk_id"},
    {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "MergedWithNext",
        "pattern": {"Regex": "a"}}]}})",
     "behavior \"MergedWithNext\""},
    {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
        "pattern": {"Regex": "(a"}}, {"type": "ByteLevel"}]}})",
     "split pattern \"(a\""},
    {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
        "pattern": {"Regex": "\\p{Han}+"}}, {"type": "ByteLevel"}]}})",
     "the character property \"Han\""},
    {R"({"post_processor": {"type": "PairProcessing"}})", "post_processor \"PairProcessing\""},
    {R"({"post_processor": {"type": "BertProcessing"}})", "post_processor: \"cls\" is not a token and its id"},
    {R"({"post_processor": {"type": "RobertaProcessing", "cls": ["<bos>", 256], "sep": ["<eos>", "x"]}})",
     "token \"<eos>\" has no id"},
    {R"({"post_processor": {"type": "RobertaProcessing", "cls": ["<bos>", 256], "sep": ["<eos>", 999]}})",
     "post_processor: no token has the id 999"},
    {R"({"post_processor": {"type": "TemplateProcessing", "single": []}})", "has to hold the text ($A) exactly once"},
    {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}})",
     "names no entry"},
    {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {}}],
        "special_tokens": {"x": {"ids": [9999]}}}})",
     "post_processor: no token has the id 9999"},
    {R"({"added_tokens": {"a": 1}})", "added_tokens is not an array"},
    {R"({"added_tokens": [{"id": 256}]})", "has no \"content\""},
    {R"({"added_tokens": [{"id": 97, "content": "<x>"}]})", "id 97 is \"a\""},
    {R"({"added_tokens": [{"id": 300, "content": "<x>", "single_word": true}]})", "single_word is not supported"},
};

TEST(TokenizerTest, MalformedFilesAreNamed) {
  for (const Malformed& bad : kMalformed) {
    json file = byte_tokenizer();
    file.merge_patch(json::parse(bad.patch));
    const auto tokenizer = load(file);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << bad.patch;
    EXPECT_THAT(tokenizer.status().message(), AllOf(HasSubstr("tokenizer.json"), HasSubstr(bad.message))) << bad.patch;
  }
}

// A damaged file either loads and tokenizes, or is refused with a message.
TEST(TokenizerTest, MutatedFilesNeverCrash) {
  json file = byte_tokenizer();
  file["model"]["vocab"]["ab"] = 300;
  file["model"]["merges"] = {"a b"};
  file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "\\s+(?!\\S)|[^\\s\\p{L}]+"}}}},
        {{"type", "ByteLevel"}, {"use_regex", true}, {"add_prefix_space", true}}}}};
  const std::string text = file.dump();
  std::mt19937 random(11);
  int loaded = 0;
  for (int round = 0; round < 400; ++round) {
    std::string mutated = text;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      // Mostly after the vocabulary, where the structure is.
      const size_t at = random() % 4 == 0 ? random() % mutated.size() : mutated.size() - 1 - random() % 900;
      switch (random() % 3) {
        case 0:
          mutated[at] = static_cast<char>(32 + random() % 96);
          break;
        case 1:
          mutated.erase(at, 1 + random() % 8);
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 12));
      }
    }
    const Folder folder;
    folder.write("tokenizer.json", mutated);
    auto tokenizer = Tokenizer::load(folder.path());
    if (!tokenizer.ok()) {
      EXPECT_FALSE(tokenizer.status().message().empty());
      continue;
    }
    ++loaded;
    std::vector<int32_t> tokens;
    EXPECT_TRUE((*tokenizer)->encode_document("ab e\u0301 \u00e9\n\n 12<eos>\u4e2d", tokens).ok());
  }
  EXPECT_GT(loaded, 5);
}

TEST(TokenizerTest, UnreadableFiles) {
  const Folder folder;
  EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[]", "{\"model\": \"\xff\"}"}) {
    folder.write("tokenizer.json", text);
    EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  folder.write_tokenizer(byte_tokenizer());
  folder.write("tokenizer_config.json", R"({"bos_token": 5})");
  EXPECT_THAT(Tokenizer::load(folder.path()).status().message(),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("bos_token")));
}

// Special tokens that only the configuration names get the next free ids, as in torchtitan.
TEST(TokenizerTest, SpecialTokensOfTheConfiguration) {
  const Folder folder;
  folder.write_tokenizer(byte_tokenizer());
  folder.write("tokenizer_config.json", R"({"bos_token": "<new>", "eos_token": "<eos>", "pad_token": null})");
  auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 258);
  EXPECT_THAT(encode(**tokenizer, "a<new>"), ElementsAre('a', 258));
}

TEST(SplitPatternTest, RefusesPatternsThatEnginesReadDifferently) {
  for (const char* pattern : {"\\w+", "\\bx", "^a", "a$", "[[:alpha:]]", "[a&&b]", "\\h", "\\p{Han}", "\\pL",
                              "[\\P{L}]", "(?m:a)", "(?<name>a)", "a{2}+", "[]a]", "[a", "a\\", "\\1", "\\x41"}) {
    const auto translated = translate_pattern(pattern);
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(translated.status().message(), HasSubstr("is not supported")) << pattern;
  }
}

TEST(SplitPatternTest, LiteralTextIsNotAPattern) {
  const auto split = SplitPattern::compile(".+", {.literal = true});
  ASSERT_TRUE(split.ok());
  std::vector<std::string> pieces;
  ASSERT_TRUE((*split)
                  ->split("a.+b+", [&](std::string_view piece) { return pieces.emplace_back(piece), absl::OkStatus(); })
                  .ok());
  EXPECT_THAT(pieces, ElementsAre("a", ".+", "b+"));
}

TEST(NfcTest, ComposesOrdersAndBlocks) {
  EXPECT_EQ(to_nfc("plain \xc3\xa9"), "plain é");
  EXPECT_EQ(to_nfc("e\u0301"), "é");
  EXPECT_EQ(to_nfc("a\u0315\u0300"), "à\u0315");  // Reordered by class, then composed.
  EXPECT_EQ(to_nfc("a\u0301\u0301"), "á\u0301");  // The second one is blocked.
  EXPECT_EQ(to_nfc("\u1100\u1161\u11a8"), "각");  // Hangul.
  EXPECT_EQ(to_nfc("\u212b"), "\u00c5");          // Singleton.
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");    // Excluded from composition.
  EXPECT_EQ(to_nfc("\U0001d15e"), "\U0001d157\U0001d165");
  EXPECT_EQ(to_nfc("\u0301"), "\u0301");
}

}  // namespace
}  // namespace titan::data
