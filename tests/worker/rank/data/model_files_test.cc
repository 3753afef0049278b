// Tests tokenizers of SentencePiece and tiktoken, and of tokenizer.json with words of characters, with a few tokens
// that can be counted by hand (model_files_equality_test.py and metaspace_equality_test.py have the rest), and damaged
// files.

#include "tests/common/io/tokenizer_files/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "absl/strings/escaping.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Tokenizer>> load_model(const std::string& bytes, const std::string& config = "{}") {
  const Folder folder;
  folder.write("tokenizer.model", bytes);
  folder.write("tokenizer_config.json", config);
  return Tokenizer::load(folder.path());
}

std::vector<int32_t> document(Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens;
  EXPECT_TRUE(tokenizer.encode_document(text, tokens).ok());
  return tokens;
}

TEST(SentencePieceTokenizerTest, PairsMergeByScoreWithByteFallback) {
  auto tokenizer = load_model(testing::pair_model());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // "▁abb ab\n": "ab" merges before "▁ab", which exists for both words.
  EXPECT_THAT(document(**tokenizer, "abb ab\n"), ElementsAre(1, 263, 261, 263, 3 + '\n', 2));
  EXPECT_EQ((*tokenizer)->decode({1, 263, 261, 263, 3 + '\n', 3 + 0xC3, 3 + 0xA9, 3 + 0xC3, 2, 9999}),
            "abb ab\né\uFFFD");
  EXPECT_EQ((*tokenizer)->spelling(263), "\u2581ab");
  EXPECT_EQ((*tokenizer)->bytes(263), " ab");
  EXPECT_EQ((*tokenizer)->bytes(3 + '\n'), "\n");
  EXPECT_EQ((*tokenizer)->max_id(), 264);
  EXPECT_THAT(document(**tokenizer, "a<x>b"), ElementsAre(1, 259, 260, 264, 261, 2));
  // The names of control pieces are ordinary text.
  EXPECT_THAT(document(**tokenizer, "<s>"), ElementsAre(1, 259, 3 + '<', 3 + 's', 3 + '>', 2));
}

TEST(SentencePieceTokenizerTest, UnigramsTakeTheBestPath) {
  auto tokenizer = load_model(testing::unigram_model());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // "▁a b" costs 7 and "▁ ab" 9; "A" is "a"; surrounding white space is removed; neighbouring unknown characters are
  // one token.
  EXPECT_THAT(document(**tokenizer, "  Ab ab  "), ElementsAre(1, 7, 5, 7, 5, 2));
  EXPECT_THAT(document(**tokenizer, "azzba"), ElementsAre(1, 7, 0, 5, 4, 2));
  EXPECT_EQ((*tokenizer)->decode({7, 0, 5}), "a \u2047 b");
}

TEST(SentencePieceTokenizerTest, UserDefinedPiecesPrecedeTheBestPath) {
  constexpr auto kUser = testing::SentencePiece::Type::kUserDefined;
  auto tokenizer =
      load_model(testing::unigram_model() + testing::piece("<X>", 0, kUser) + testing::piece("aA", -99, kUser));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // "<X>" 8 and "aA" 9 match their exact text, whatever rules and scores say; "a<" and "bA" are not such pieces.
  EXPECT_THAT(document(**tokenizer, "<X>ab<X>"), ElementsAre(1, 3, 8, 6, 8, 2));
  EXPECT_THAT(document(**tokenizer, "aAa<bA"), ElementsAre(1, 3, 9, 4, 0, 5, 4, 2));
  EXPECT_EQ((*tokenizer)->decode({3, 8, 6, 9}), "<X>abaA");
}

TEST(TiktokenTokenizerTest, RanksMergeAndSpecialTokensFollow) {
  auto tokenizer = load_model(testing::tiktoken_file());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 259);
  EXPECT_EQ((*tokenizer)->eos_id(), 260);
  EXPECT_EQ((*tokenizer)->max_id(), 259 + 255);
  EXPECT_EQ((*tokenizer)->spelling(259 + 9), "<|eot_id|>");
  EXPECT_EQ((*tokenizer)->spelling(259 + 255), "<|reserved_special_token_250|>");
  EXPECT_THAT(document(**tokenizer, "abab ab<|eot_id|>"), ElementsAre(259, 258, ' ', 256, 268, 260));
  EXPECT_EQ((*tokenizer)->decode({259, 258, 257, 268}), "<|begin_of_text|>abab a<|eot_id|>");
}

TEST(TiktokenTokenizerTest, ConfigurationSelectsTokensAndEncoding) {
  auto tokenizer = load_model(testing::tiktoken_file(), R"({"added_tokens_decoder": {"267": {"content": "<|eom|>"}},
      "eos_token": "<|eom|>"})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 267);
  tokenizer = load_model(testing::tiktoken_file(), R"({"tiktoken_encoding": "o200k_base"})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 199999);
  EXPECT_EQ((*tokenizer)->bos_id(), std::nullopt);
  for (const auto& [config, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"tiktoken_encoding": "p50k"})", "encoding \"p50k\" is not supported"},
           {R"({"eos_token": "<none>"})", "eos_token \"<none>\" is not a special token"},
           {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "added_tokens_decoder: \"x\""},
           {R"({"added_tokens_decoder": {"7": {"content": "y"}}})", "has the number 7, which is a rank"}}) {
    EXPECT_THAT(load_model(testing::tiktoken_file(), config).status().message(),
                AllOf(HasSubstr("tokenizer.model"), HasSubstr(message)));
  }
}

json characters(const json& model) {
  return {{"model", model},
          {"added_tokens", {{{"id", 0}, {"content", "<unk>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Precompiled"}, {"precompiled_charsmap", absl::Base64Escape(testing::charsmap())}},
              {{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}},
              {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}}}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
}

json unigram_json() {
  return characters(json::parse(R"({"type": "Unigram", "unk_id": 0, "vocab":
      [["<unk>", 0], ["▁", -4], ["a", -3], ["b", -3], ["ab", -5], ["▁a", -4]]})"));
}

json pairs_json() {
  return characters(json::parse(R"({"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5, "<0x0A>": 6},
      "merges": [["a", "b"], ["▁", "ab"]]})"));
}

std::vector<int32_t> encode_json(const json& file, const std::string& text) {
  const Folder folder;
  folder.write("tokenizer.json", file.dump());
  auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> tokens;
  if (!tokenizer.ok()) return tokens;
  EXPECT_TRUE((*tokenizer)->encode(text, tokens).ok());
  return tokens;
}

TEST(CharacterTokenizerTest, NormalizesSplitsAndFallsBack) {
  EXPECT_THAT(encode_json(unigram_json(), "Ab  aZZ "), ElementsAre(5, 3, 5, 0));
  EXPECT_THAT(encode_json(pairs_json(), "ab  ab\nzz"), ElementsAre(5, 5, 6, 0));
  // The second text does not begin where the original does.
  EXPECT_THAT(encode_json(pairs_json(), "<unk>ab"), ElementsAre(0, 4));
}

// A damaged file either loads and gives valid tokens, or is refused with its name.
void expect_survives(const std::string& name, const std::string& bytes, size_t tail) {
  std::mt19937 random(7);
  const Folder folder;
  int refused = 0;
  for (int round = 0; round < 210; ++round) {
    std::string mutated = bytes;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % 4 == 0 ? random() % mutated.size()
                                          : mutated.size() - 1 - random() % std::min(tail, mutated.size());
      switch (random() % 3) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.erase(at, 1 + random() % 8);
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 12));
      }
    }
    std::filesystem::remove(folder.path() + "/" + name);  // Truncating a file waits for the disk.
    folder.write(name, mutated);
    const auto tokenizer = Tokenizer::load(folder.path());
    if (!tokenizer.ok()) {
      ++refused;
      EXPECT_THAT(tokenizer.status().message(), HasSubstr(folder.path() + "/" + name));
      continue;
    }
    std::vector<int32_t> tokens;
    (void)(*tokenizer)->encode_document("ab AB e\u0301 \u00e9\n\n 12<unk>\u4e2d\u2581ab<x> ", tokens);
    for (const int32_t token : tokens) ASSERT_TRUE(token >= 0 && token <= (*tokenizer)->max_id());
    (void)(*tokenizer)->decode(tokens);
  }
  EXPECT_GT(refused, 20) << name;
  EXPECT_LT(refused, 210) << name;
}

TEST(ModelFilesTest, MutatedFilesNeverCrash) {
  expect_survives("tokenizer.model", testing::pair_model(), 100);
  expect_survives("tokenizer.model", testing::unigram_model(), 500);
  expect_survives("tokenizer.model", testing::tiktoken_file(), 600);
  expect_survives("tokenizer.json", unigram_json().dump(), 600);
  expect_survives("tokenizer.json", pairs_json().dump(), 600);
}

}  // namespace
}  // namespace titan::data
