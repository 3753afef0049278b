// Which tokenizer a folder has, and the errors for files that are damaged or of another kind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "common/io/tokenizer_files/tiktoken.h"
#include "tests/common/io/tokenizer_files/model_files.h"
#include "tests/worker/rank/data/testing.h"

namespace titan::tokenizer_files {
namespace {

using data::testing::Folder;
using ::testing::HasSubstr;
using Type = SentencePiece::Type;
namespace made = data::testing;

TEST(FindTokenizerTest, JsonComesFirstThenContentDecides) {
  const Folder folder;
  EXPECT_THAT(find_tokenizer(folder.path()).status().message(),
              ::testing::AllOf(HasSubstr("no tokenizer.json"), HasSubstr("tokenizer.model"), HasSubstr("*.tiktoken")));
  EXPECT_THAT(find_tokenizer(folder.path() + "/none").status().message(), HasSubstr("no such folder"));
  folder.write("a.tiktoken", made::tiktoken_file());
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kTiktoken);
  folder.write("b.tiktoken", made::tiktoken_file());
  EXPECT_THAT(find_tokenizer(folder.path()).status().message(), HasSubstr("several *.tiktoken"));
  folder.write("tokenizer.model", "version https://git-lfs\n");
  EXPECT_EQ(find_tokenizer(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
  folder.write("tokenizer.model", made::tiktoken_file());
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kTiktoken);
  EXPECT_EQ(largest_id(*find_tokenizer(folder.path())).value(), 258);
  folder.write("tokenizer.model", made::pair_model());
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kSentencePiece);
  EXPECT_EQ(largest_id(*find_tokenizer(folder.path())).value(), 264);
  folder.write("tokenizer.json",
               R"({"model": {"type": "Unigram", "vocab": [["a", -1]]}, "added_tokens": [{"id": 7}]})");
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kJson);
  EXPECT_EQ(largest_id(*find_tokenizer(folder.path())).value(), 7);
}

// The files of T5 and CLIP come last, unless a caller wants what the classes in Python read.
TEST(FindTokenizerTest, FilesOfPythonClasses) {
  const Folder folder;
  folder.write("vocab.json", R"({"a": 0, "<|endoftext|>": 3})");
  folder.write("merges.txt", "#version: 0.2\n");
  EXPECT_TRUE(absl::IsNotFound(find_tokenizer(folder.path()).status())) << "the vocabulary of GPT-2";
  folder.write("vocab.json", R"({"a": 0, "<|startoftext|>": 6, "<|endoftext|>": 7})");
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kClip);
  EXPECT_EQ(largest_id(*find_tokenizer(folder.path())).value(), 7);
  std::filesystem::remove(folder.path() + "/merges.txt");
  EXPECT_THAT(find_python_tokenizer(folder.path()).status().message(), HasSubstr("merges.txt"));
  folder.write("spiece.model", made::unigram_model());
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kT5);
  EXPECT_EQ(largest_id(*find_tokenizer(folder.path())).value(), 7);
  folder.write("tokenizer.json", "{}");
  EXPECT_EQ(find_tokenizer(folder.path())->kind, TokenizerFileKind::kJson);
  EXPECT_EQ(find_python_tokenizer(folder.path())->kind, TokenizerFileKind::kT5);
}

// Tokens without an id in either file follow the largest id in the order of their keys; ranks number them the same way.
TEST(LargestIdTest, CountsTokensOnlyInTheConfig) {
  const Folder folder;
  folder.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
                                     "added_tokens": [{"id": 5, "content": "<end>"}]})");
  const auto largest = [&] { return largest_id(*find_tokenizer(folder.path())).value(); };
  EXPECT_EQ(largest(), 5);
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>", "unk_token": "b", "mask_token": null})");
  EXPECT_EQ(largest(), 5);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "pad_token": {"content": "<pad>"},
                                            "bos_token": "<pad>", "added_tokens_decoder": {"9": {"content": "<x>"}}})");
  EXPECT_EQ(largest(), 7);
  folder.write("tokenizer_config.json", "[");
  EXPECT_EQ(largest(), 5) << "the ranks report the damage";
}

TEST(NotAppliedTest, TruncationAndPaddingAreNamed) {
  const Folder folder;
  EXPECT_TRUE(not_applied(folder.path()).empty());
  const auto notes = [&](const std::string& json) {
    folder.write("tokenizer.json", json);
    return not_applied(folder.path());
  };
  EXPECT_TRUE(
      notes(R"({"truncation": null, "padding": null, "model": {"vocab": {"truncation": 7, "padding": 8}}})").empty());
  EXPECT_TRUE(notes(R"({"added_tokens": [{"content": "\"truncation\": {"}]})").empty());
  EXPECT_THAT(notes("{\n  \"truncation\" : {\"max_length\": 8}, \"padding\": {}}"),
              ::testing::ElementsAre(HasSubstr("tokenizer.json: \"truncation\" is not applied"),
                                     HasSubstr("tokenizer.json: \"padding\" is not applied")));
}

TEST(TiktokenFileTest, ReportsTheInvalidLine) {
  const std::string file = made::tiktoken_file();
  ASSERT_TRUE(parse_tiktoken(file).ok());
  EXPECT_TRUE(parse_tiktoken(absl::StrReplaceAll(file, {{"\n", "\r\n"}})).ok());
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {{"AA== 0\n", "AA==\n", "line 1: \"AA==\" is not a token"},
               {"AQ== 1\n", "AQ== one\n", "line 2"},
               {"AQ== 1\n", "A?== 1\n", "line 2"},
               {"AQ== 1\n", "AQ== -1\n", "line 2"},
               {"AQ== 1\n", "AQ== 99999999\n", "line 2"},
               {"AQ== 1\n", "AA== 1\n", "is a duplicate token"},
               {"AQ== 1\n", "AQ== 0\n", "has a duplicate rank"},
               {"AQ== 1\n", "", "no token for the byte 0x01"}};
  for (const auto& broken : cases) {
    const std::string changed = absl::StrReplaceAll(file, {{broken.from, broken.to}});
    EXPECT_THAT(parse_tiktoken(changed).status().message(), HasSubstr(broken.message)) << broken.to;
  }
}

TEST(SentencePieceFileTest, SaysWhatIsWrong) {
  const std::string controls = made::control_pieces(), a = made::piece("a", -1);
  ASSERT_TRUE(parse_sentencepiece(controls + a).ok());
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {{controls + a.substr(0, a.size() - 1), "damaged or truncated"},
               {std::string("\x0b", 1), "damaged or truncated"},
               {a, "has 0 pieces of type UNKNOWN"},
               {controls + a + a, "piece \"a\" occurs twice"},
               {controls + made::piece("", -1), "piece 3 is empty"},
               {controls + made::piece("\xff", -1), "piece 3 is empty or not UTF-8"},
               {controls + made::piece(std::string(9000, 'a'), -1), "9000 bytes"},
               {controls + made::piece("a", std::numeric_limits<float>::infinity()), "has no finite score"},
               {controls + made::piece("a", -1, static_cast<Type>(9)), "piece \"a\" has the unknown type 9"},
               {controls + made::piece("<0x0A>", 0, Type::kByte), "byte_fallback is not set"},
               {controls + made::bytes_field(2, made::number_field(35, 1)), "there is no piece <0x00>"},
               {controls + made::piece("newline", 0, Type::kUnknown), "has 2 pieces of type UNKNOWN"},
               {controls + made::bytes_field(2, made::number_field(3, 3)), "model_type is WORD"},
               {controls + made::bytes_field(2, made::number_field(24, 1)), "treat_whitespace_as_suffix"},
               {controls + made::bytes_field(5, made::bytes_field(2, "x")), "denormalizer_spec"}};
  for (const auto& broken : cases) {
    EXPECT_THAT(parse_sentencepiece(broken.bytes).status().message(), HasSubstr(broken.message));
  }
}

}  // namespace
}  // namespace titan::tokenizer_files
