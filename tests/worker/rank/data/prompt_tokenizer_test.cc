// Tests the ids of prompts with small vocabularies of CLIP's and T5's kind, which folders they are read from, and the
// errors for folders that lack something. prompt_tokens_test.py compares with the package `transformers`.

#include "worker/rank/data/tokenizer/prompt_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tests/common/io/tokenizer_files/model_files.h"
#include "tests/worker/rank/data/testing.h"

namespace titan::data {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::byte_vocabulary;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::piece;
using Kind = PromptTokenizer::Kind;
using PieceType = testing::SentencePiece::Type;

// Bytes 0-255, bytes at the end of a word 256-511, "ca" 512, "cat</w>" 513, then the two special tokens.
json clip_vocabulary() {
  json vocabulary = byte_vocabulary();
  const json bytes = vocabulary;
  for (const auto& [token, id] : bytes.items()) vocabulary[token + "</w>"] = id.get<int>() + 256;
  vocabulary.update({{"ca", 512}, {"cat</w>", 513}, {"<|startoftext|>", 514}, {"<|endoftext|>", 515}});
  return vocabulary;
}
constexpr int64_t kClipStart = 514, kClipEnd = 515, kCat = 513;
constexpr char kMerges[] = "#version: 0.2\nc a\nca t</w>\n";

struct ClipFolder : Folder {
  ClipFolder() {
    write("vocab.json", clip_vocabulary().dump());
    write("merges.txt", kMerges);
  }
};

// <pad> 0, </s> 1, <unk> 2, then the pieces of testing::unigram_model().
std::string t5_model() {
  return piece("<pad>", 0, PieceType::kControl) + piece("</s>", 0, PieceType::kControl) +
         piece("<unk>", 0, PieceType::kUnknown) + testing::unigram_model().substr(testing::control_pieces().size());
}

std::vector<int64_t> ids(absl::StatusOr<PromptTokenizer> tokenizer, const std::string& prompt) {
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  if (!tokenizer.ok()) return {};
  std::vector<int64_t> written(static_cast<size_t>(tokenizer->length()) + 1, -5);
  EXPECT_TRUE(tokenizer->encode(prompt, written.data()).ok());
  EXPECT_EQ(written.back(), -5);
  written.pop_back();
  return written;
}

std::string error_of(const Folder& folder, int64_t length = 8) {
  const auto tokenizer = PromptTokenizer::load(folder.path(), length);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << tokenizer.status();
  return std::string(tokenizer.status().message());
}

TEST(PromptTokenizerTest, ClipSurroundsCutsAndPads) {
  const ClipFolder folder;
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 5), ""),
              ElementsAre(kClipStart, kClipEnd, kClipEnd, kClipEnd, kClipEnd));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 6), " A  CAT\n"),
              ElementsAre(kClipStart, 'a' + 256, kCat, kClipEnd, kClipEnd, kClipEnd));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 5), "cat cat cat cat"),
              ElementsAre(kClipStart, kCat, kCat, kCat, kClipEnd));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 2), "cat"), ElementsAre(kClipStart, kClipEnd));
  // A special token in the text is one token, in any case where a word begins; the text need not end before the cut.
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 8), "cat<|endoftext|>cat <|STARTOFTEXT|>"),
              ElementsAre(kClipStart, kCat, kClipEnd, kCat, kClipStart, kClipEnd, kClipEnd, kClipEnd));
}

TEST(PromptTokenizerTest, FolderNamesPaddingAndLength) {
  const ClipFolder folder;
  EXPECT_EQ(PromptTokenizer::load(folder.path())->length(), 77);
  folder.write("config.json", R"({"model_type": "clip", "text_config": {"max_position_embeddings": 9}})");
  EXPECT_EQ(PromptTokenizer::load(folder.path())->length(), 9);
  EXPECT_THAT(error_of(folder, 10), AllOf(HasSubstr("config.json"), HasSubstr("9 positions"), HasSubstr("10 tokens")));
  folder.write("tokenizer_config.json", R"({"model_max_length": 6, "pad_token": "!"})");
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path()), "cat!"),
              ElementsAre(kClipStart, kCat, '!', kClipEnd, '!', '!'));
  folder.write("special_tokens_map.json", R"({"pad_token": {"content": "<|new|>", "lstrip": false}})");
  EXPECT_EQ(PromptTokenizer::load(folder.path())->pad_id(), 516);
  folder.write("tokenizer_config.json", R"({"pad_token": "!", "added_tokens_decoder": {"0": {"content": "x"}}})");
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr("vocab.json"), HasSubstr("\"x\"")));
  folder.write("tokenizer_config.json", R"({"pad_token": "!", "added_tokens_decoder": {}})");
  EXPECT_EQ(PromptTokenizer::load(folder.path())->pad_id(), '!') << "special_tokens_map.json does not count";
}

TEST(PromptTokenizerTest, T5EndsCutsAndPads) {
  const Folder folder;
  folder.write("spiece.model", t5_model());
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 4), ""), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 5), "ab  a"), ElementsAre(7, 5, 7, 1, 0));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 3), "ab  a"), ElementsAre(7, 5, 1));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 1), "ab  a"), ElementsAre(1));
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 4), "a</s>"), ElementsAre(7, 1, 0, 0)) << "one end is enough";
  // Sentinel tokens follow the 8 pieces, from the last one down, and take the white space around them.
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path(), 6), "a <extra_id_0> a <extra_id_99>"),
              ElementsAre(7, 107, 7, 8, 1, 0));
  folder.write("tokenizer_config.json", R"({"extra_ids": 2, "model_max_length": 3})");
  EXPECT_THAT(ids(PromptTokenizer::load(folder.path()), "<extra_id_0>"), ElementsAre(9, 1, 0));
}

TEST(PromptTokenizerTest, TestModeTakesALanguageModelsTokenizer) {
  const Folder folder;
  folder.write_tokenizer(testing::byte_tokenizer());
  EXPECT_THAT(ids(PromptTokenizer::load_for_test(folder.path(), 6), "ab"), ElementsAre(256, 'a', 'b', 257, 0, 0));
  EXPECT_THAT(ids(PromptTokenizer::load_for_test(folder.path(), 3), "abc"), ElementsAre(256, 'a', 'b'));
  EXPECT_FALSE(PromptTokenizer::load_for_test(folder.path(), 0).ok());
  EXPECT_THAT(error_of(folder), HasSubstr("neither T5's nor CLIP's"));
}

TEST(PromptTokenizerTest, FilesSayWhichKindItIs) {
  const ClipFolder clip;
  EXPECT_EQ(PromptTokenizer::load(clip.path())->kind_source(), "vocab.json");
  clip.write("config.json", R"({"model_type": "clip_text_model"})");
  EXPECT_EQ(PromptTokenizer::load(clip.path())->kind_source(), "config.json");
  clip.write("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizerFast"})");
  EXPECT_EQ(PromptTokenizer::load(clip.path())->kind_source(), "tokenizer_config.json");
  EXPECT_EQ(PromptTokenizer::load(clip.path())->kind(), Kind::kClip);
  clip.write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  EXPECT_THAT(error_of(clip), AllOf(HasSubstr("T5's tokenizer"), HasSubstr("vocab.json")));
  clip.write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  EXPECT_THAT(error_of(clip), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("BertTokenizer")));

  // Nothing but the path is left to decide.
  const Folder folder;
  const std::string path = folder.path() + "/OpenCLIP";
  std::filesystem::create_directory(path);
  json file = testing::byte_tokenizer();
  file["model"]["vocab"].update({{"<|startoftext|>", 300}, {"<|endoftext|>", 301}});
  folder.write("OpenCLIP/tokenizer.json", file.dump());
  const auto tokenizer = PromptTokenizer::load(path, 4);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->kind(), Kind::kClip);
  EXPECT_EQ(tokenizer->kind_source(), "the folder's path");
}

TEST(PromptTokenizerTest, ErrorsNameTheFile) {
  const Folder empty;
  EXPECT_EQ(PromptTokenizer::load(empty.path(), 8).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(PromptTokenizer::load(empty.path() + "/none", 8).status().code(), absl::StatusCode::kNotFound);
  const struct {
    const char *file, *content, *message;
  } cases[] = {
      {"vocab.json", "[\"<|startoftext|>\"", "vocab.json: not valid JSON"},
      {"vocab.json", R"({"<|startoftext|>": "x"})", "vocab.json"},
      {"merges.txt", "", "merges.txt: cannot be read, or its first line"},
      {"merges.txt", "c a\n", "merges.txt: cannot be read, or its first line"},
      {"merges.txt", "#version: 0.2\nc a\ncat\n", "merges.txt: line 3"},
      {"merges.txt", "#version: 0.2\nc b\n", "\"cb\" is not in the vocabulary"},
      {"tokenizer_config.json", "{", "tokenizer_config.json: not valid JSON"},
      {"tokenizer_config.json", R"({"pad_token": null})", "the tokenizer has no pad_token"},
      {"tokenizer_config.json", R"({"eos_token": null})", "eos_token is null"},
      {"tokenizer_config.json", R"({"bos_token": 7})", "bos_token: 7 is not a token"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "\"x\" is not an id"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"9": {"content": "y", "single_word": true}}})",
       "single_word is not supported"},
      {"special_tokens_map.json", "[]", "special_tokens_map.json: is not a JSON object"},
      {"added_tokens.json", R"({"<x>": "y"})", "added_tokens.json: token \"<x>\" has no id"},
  };
  for (const auto& bad : cases) {
    const ClipFolder folder;
    folder.write(bad.file, bad.content);
    EXPECT_THAT(error_of(folder), HasSubstr(bad.message)) << bad.file << " " << bad.content;
  }
  const ClipFolder clip;
  EXPECT_THAT(error_of(clip, 1), HasSubstr("cannot have 1 tokens: the number is from 2"));
  const Folder t5;
  t5.write("spiece.model", t5_model());
  EXPECT_THAT(error_of(t5, 0), HasSubstr("has no model_max_length"));
  EXPECT_THAT(error_of(t5, -1), HasSubstr("cannot have -1 tokens"));
  for (const auto& [config, message] :
       {std::pair{R"({"tokenizer_class": "AlbertTokenizer"})", "AlbertTokenizer"},
        {R"({"extra_ids": -1})", "extra_ids is -1"},
        {R"({"extra_ids": "x"})", "extra_ids is \"x\""},
        {R"({"eos_token": null})", "eos_token"},
        {R"({"added_tokens_decoder": {"3": {"content": "<x>"}}})", "has the id 3, which is that of \"\u2581\""}}) {
    t5.write("tokenizer_config.json", config);
    EXPECT_THAT(error_of(t5), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(message))) << config;
  }
}

TEST(PromptTokenizerTest, RowsAreWrittenInOrderUpToABadOne) {
  const ClipFolder folder;
  auto tokenizer = PromptTokenizer::load(folder.path(), 3);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int64_t> rows(9, -5);
  const absl::Status status = tokenizer->encode_rows({"cat", "a\xff", ""}, rows.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("prompt 1"), HasSubstr("UTF-8")));
  EXPECT_THAT(rows, ElementsAre(kClipStart, kCat, kClipEnd, -5, -5, -5, -5, -5, -5));
  ASSERT_TRUE(tokenizer->encode_rows({"cat", "", "a"}, rows.data()).ok());
  EXPECT_THAT(rows,
              ElementsAre(kClipStart, kCat, kClipEnd, kClipStart, kClipEnd, kClipEnd, kClipStart, 'a' + 256, kClipEnd));
}

// A damaged file either loads and gives valid tokens, or is refused with a message that names the folder.
template <typename Made>
void expect_prompts_survive(const std::string& name, const std::string& bytes) {
  std::mt19937 random(5);
  int refused = 0;
  constexpr int kRounds = 60;
  const Made folder;
  for (int round = 0; round < kRounds; ++round) {
    std::string mutated = bytes;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % mutated.size();
      random() % 2 == 0 ? void(mutated[at] = static_cast<char>(random())) : void(mutated.erase(at, 1 + random() % 8));
      if (mutated.empty()) mutated = "x";
    }
    std::filesystem::remove(folder.path() + "/" + name);
    folder.write(name, mutated);
    auto tokenizer = PromptTokenizer::load(folder.path(), 12);
    if (!tokenizer.ok()) {
      ++refused;
      EXPECT_THAT(tokenizer.status().message(), HasSubstr(folder.path()));
      continue;
    }
    std::vector<int64_t> written(12);
    ASSERT_TRUE(tokenizer->encode("A cat <|endoftext|>\u4e2d e\u0301 <extra_id_0> ab</s>", written.data()).ok());
    for (const int64_t id : written) EXPECT_TRUE(id >= 0 && id <= tokenizer->tokenizer().max_id()) << id;
  }
  EXPECT_GT(refused, 2) << name;
  EXPECT_LT(refused, kRounds) << name;
}

struct T5Folder : Folder {
  T5Folder() { write("spiece.model", t5_model()); }
};

TEST(PromptTokenizerTest, DamagedFilesNeverCrash) {
  expect_prompts_survive<ClipFolder>("vocab.json", clip_vocabulary().dump());
  expect_prompts_survive<ClipFolder>("merges.txt", kMerges);
  const std::string config =
      R"({"pad_token": "!", "bos_token": {"content": "<|startoftext|>", "lstrip": true}, "model_max_length": 77,
          "added_tokens_decoder": {"0": {"content": "\u0100"}, "514": {"content": "<|startoftext|>"}}})";
  expect_prompts_survive<ClipFolder>("tokenizer_config.json", config);
  expect_prompts_survive<T5Folder>("spiece.model", t5_model());
  expect_prompts_survive<T5Folder>(
      "tokenizer_config.json", R"({"extra_ids": 3, "legacy": false, "additional_special_tokens": ["<extra_id_0>"]})");
}

}  // namespace
}  // namespace titan::data
