// Tests how a text with images becomes the tokens and labels of a vision-language model.

#include "worker/rank/data/tokenizer/image_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/rank/data/testing.h"

namespace titan::data {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

constexpr int32_t kBosId = 256, kEosId = 257, kImageId = 258, kBeginId = 259, kEndId = 260, kPadId = 261;

json image_tokenizer() {
  json file = testing::byte_tokenizer();
  int32_t id = kImageId;
  for (const char* content : {"<|image|>", "<|begin_of_image|>", "<|end_of_image|>", "<|pad|>"}) {
    file["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", true}});
  }
  return file;
}

std::unique_ptr<Tokenizer> load_images(const json& file) {
  const Folder folder;
  folder.write_tokenizer(file);
  auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TextPart words(const std::string& content) { return {.text = content}; }
TextPart picture(int64_t vectors) { return {.image_tokens = vectors}; }

TEST(ImageTextTest, TokensAreFoundByTheirText) {
  const auto tokens = find_image_tokens(*load_images(image_tokenizer()));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(std::vector({tokens->image, tokens->begin, tokens->end, tokens->pad}),
              ElementsAre(kImageId, kBeginId, kEndId, kPadId));
  for (int missing = 0; missing < 4; ++missing) {
    json file = image_tokenizer();
    const std::string name = file["added_tokens"][2 + missing]["content"];
    file["added_tokens"].erase(2 + missing);
    EXPECT_THAT(find_image_tokens(*load_images(file)).status().message(), HasSubstr("has no token " + name));
    // A token of the vocabulary that no text becomes does not do.
    file["model"]["vocab"][name] = kImageId + missing;
    EXPECT_THAT(find_image_tokens(*load_images(file)).status().message(), HasSubstr(name + " ("));
  }
}

// Qwen's processor writes an image in a text as <|vision_start|><|image_pad|><|vision_end|>, and repeats the one in the
// middle for each vector. Its rows are filled with the token that ends a document, which is predicted all the same.
TEST(ImageTextTest, QwensTokens) {
  json file = testing::byte_tokenizer();
  int32_t id = kImageId;
  for (const char* content : {"<|image_pad|>", "<|vision_start|>", "<|vision_end|>"})
    file["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", true}});
  const auto tokenizer = load_images(file);
  EXPECT_THAT(find_image_tokens(*tokenizer, kQwenImageTokens).status().message(),
              HasSubstr("has no token <|endoftext|>; text with images needs <|image_pad|>, <|vision_start|>"));
  ImageTokenTexts texts = kQwenImageTokens;
  const std::string eos = tokenizer->spelling(*tokenizer->eos_id());
  texts.pad = eos.c_str();
  const auto special = find_image_tokens(*tokenizer, texts);
  ASSERT_TRUE(special.ok()) << special.status();
  const std::vector<TextPart> parts{words("a"), picture(2), words("b")};
  EXPECT_EQ(sample_text(parts, "", texts), "a<|vision_start|><|image_pad|><|image_pad|><|vision_end|>b");
  const auto sample = tokenize_sample(*tokenizer, *special, parts);
  ASSERT_TRUE(sample.ok()) << sample.status();
  const int32_t eos_id = *tokenizer->eos_id();
  EXPECT_EQ(sample->ids.back(), eos_id);
  EXPECT_EQ(sample->labels.back(), eos_id);
  EXPECT_EQ(std::count(sample->labels.begin(), sample->labels.end(), -100), 4);
}

TEST(ImageTextTest, TextJoinsPartsAndStripsTheEnds) {
  EXPECT_EQ(sample_text({picture(2), words(" a cat \u3000\x1c\n")}, "<eos>"),
            "<|begin_of_image|><|image|><|image|><|end_of_image|> a cat<eos>");
  EXPECT_EQ(sample_text({words("\n\u00a0 a "), picture(1), words("b"), words(""), words(" c")}, ""),
            "a <|begin_of_image|><|image|><|end_of_image|>b c");
  EXPECT_EQ(sample_text({picture(0)}, "."), "<|begin_of_image|><|end_of_image|>.");
  EXPECT_EQ(sample_text({words("  \n")}, "<eos>"), "<eos>");
  EXPECT_EQ(sample_text({}, "<eos>"), "<eos>");
}

TEST(ImageTextTest, LabelsIgnoreImagesAndPadding) {
  const auto tokenizer = load_images(image_tokenizer());
  const ImageTokens special = *find_image_tokens(*tokenizer);
  const auto sample = tokenize_sample(*tokenizer, special, {words("a"), picture(2), words("b <|pad|>")});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->ids, ElementsAre('a', kBeginId, kImageId, kImageId, kEndId, 'b', ' ', kPadId, kEosId));
  EXPECT_THAT(sample->labels, ElementsAre('a', -100, -100, -100, -100, 'b', ' ', -100, kEosId));
}

// The file's own BOS comes first, as in the Python package; the configuration's does not.
TEST(ImageTextTest, PostProcessorsPrefixComesFirst) {
  json file = image_tokenizer();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {kBosId}}}}}}};
  const auto tokenizer = load_images(file);
  const auto sample = tokenize_sample(*tokenizer, *find_image_tokens(*tokenizer), {words("a")});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->ids, ElementsAre(kBosId, 'a', kEosId));
  EXPECT_THAT(sample->labels, ElementsAre(kBosId, 'a', kEosId));
}

TEST(ImageTextTest, BadSamplesAreRefused) {
  const auto tokenizer = load_images(image_tokenizer());
  const ImageTokens special = *find_image_tokens(*tokenizer);
  const auto error = [&](const std::vector<TextPart>& parts) {
    const auto sample = tokenize_sample(*tokenizer, special, parts);
    EXPECT_EQ(sample.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sample.status().message());
  };
  EXPECT_THAT(error({words("see <|image|>"), picture(3)}), HasSubstr("4 tokens <|image|> for 3 vectors"));
  EXPECT_THAT(error({words("a\xc3"), words("\xa9")}), HasSubstr("UTF-8"));
  const Folder folder;
  folder.write("tokenizer.json", image_tokenizer().dump());
  const auto without_eos = Tokenizer::load(folder.path());
  ASSERT_TRUE(without_eos.ok());
  EXPECT_THAT(tokenize_sample(**without_eos, special, {words("a")}).status().message(), HasSubstr("no EOS"));
}

}  // namespace
}  // namespace titan::data
