#include "worker/rank/data/tokenizer/clip_files.h"

#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "worker/rank/data/tokenizer/folder_tokens.h"
#include "worker/rank/data/tokenizer/normal_forms.h"
#include "worker/rank/data/tokenizer/pipeline_tokenizer.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/tokenizer_file.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr char kStartOfText[] = "<|startoftext|>", kEndOfText[] = "<|endoftext|>";
constexpr size_t kMaxMerges = 49152 - 256 - 2;  // The class reads no more.

// Characters that are not letters, marks, numbers, punctuation, symbols or separators are control, format, private or
// unassigned ones.
constexpr char kRemoved[] = "[^\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\t\\n\\r]|\\x{fffd}";
// The blocks of CJK ideographs, without Kana and Hangul.
constexpr char kChinese[] =
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b73f}\\x{2b740}-\\x{2b81f}"
    "\\x{2b820}-\\x{2ceaf}\\x{f900}-\\x{faff}\\x{2f800}-\\x{2fa1f}]";
// The class ignores case throughout, so that the iota subscript U+0345, a mark whose capital is a letter, is in no set.
constexpr char kWords[] =
    "(?i:<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d)|\\p{L}+|\\p{N}|[^\\s\\p{L}\\p{N}\\x{345}]+";

// A capital sigma at the end of a word, as Unicode's condition Final_Sigma defines it.
constexpr char kFinalSigma[] =
    "(?!\\p{Case_Ignorable})\\p{Cased}\\p{Case_Ignorable}*+\\K\\x{3a3}(?!\\p{Case_Ignorable}*+\\p{Cased})";

json regex(const char* pattern) { return {{"Regex", pattern}}; }

// Returns what precedes the model, in the form of a tokenizer.json.
json pipeline() {
  const json steps = {{{"type", "Replace"}, {"pattern", regex(kRemoved)}, {"content", ""}}, {{"type", "NFC"}}};
  const json splits = {{{"type", "Split"}, {"pattern", regex(kChinese)}, {"behavior", "Isolated"}},
                       {{"type", "Split"}, {"pattern", regex(kWords)}, {"behavior", "Removed"}, {"invert", true}},
                       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}};
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", steps}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", splits}}}};
}

// Lower-cases as Python does, by context: the package `tokenizers` goes character by character.
absl::StatusOr<Normalizer::Step> lower_case_of_words() {
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<SplitPattern> sigma, SplitPattern::compile(kFinalSigma, {.pcre2 = true}));
  return [sigma](std::string& text, bool&) {
    std::string ended;
    TITAN_RETURN_IF_ERROR(sigma->parts(text, [&](std::string_view part, bool matched) {
      ended += matched ? "\u03c2" : part;
      return absl::OkStatus();
    }));
    text = to_lower_case(ended);
    return absl::OkStatus();
  };
}

// Reads lines such as "th e</w>" after the line "#version: 0.2".
absl::StatusOr<json> read_merges(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  if (!std::getline(in, line) || !line.starts_with("#version")) {
    return bad(absl::StrCat(path, ": cannot be read, or its first line is not \"#version: 0.2\""));
  }
  json merges = json::array();
  for (int number = 2; merges.size() < kMaxMerges && std::getline(in, line); ++number) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (parts.empty()) continue;
    if (parts.size() != 2) return bad(absl::StrCat(path, ": line ", number, ": is not a pair of tokens"));
    merges.push_back({parts[0], parts[1]});
  }
  return merges;
}

json listed(const std::vector<AddedToken>& tokens) {
  json list = json::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"special", true},
                    {"normalized", false},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip}});
  }
  return list;
}

std::optional<int32_t> id_in(const json& vocabulary, const std::string& token) {
  const auto found = vocabulary.find(token);
  if (found == vocabulary.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int32_t>();
}

absl::StatusOr<FolderTokens> clip_tokens(const std::string& folder, const json& vocabulary) {
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  TITAN_ASSIGN_OR_RETURN(FolderTokens tokens, read_folder_tokens(folder, config,
                                                                 {{"bos_token", kStartOfText},
                                                                  {"eos_token", kEndOfText},
                                                                  {"pad_token", kEndOfText},
                                                                  {"unk_token", kEndOfText}}));
  for (const char* role : {"bos_token", "eos_token", "unk_token"}) {
    if (!tokens.roles.contains(role)) return bad(absl::StrCat(folder, "/tokenizer_config.json: ", role, " is null"));
  }
  auto size = static_cast<int32_t>(vocabulary.size());
  for (const AddedToken& token : tokens.tokens) size += token.id >= 0 && !vocabulary.contains(token.content) ? 1 : 0;
  place_tokens([&](const std::string& token) { return id_in(vocabulary, token); }, size, tokens.tokens);
  return tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> load_clip_tokenizer(const std::string& folder,
                                                               const std::string& vocabulary) {
  const std::string path = absl::StrCat(folder, "/vocab.json");
  TITAN_ASSIGN_OR_RETURN(json vocab, tokenizer_files::parse_object(path, vocabulary));
  TITAN_ASSIGN_OR_RETURN(json merges, read_merges(absl::StrCat(folder, "/merges.txt")));
  TITAN_ASSIGN_OR_RETURN(const FolderTokens tokens, clip_tokens(folder, vocab));
  json root = pipeline();
  root["added_tokens"] = listed(tokens.tokens);
  root["model"] = {{"type", "BPE"}, {"end_of_word_suffix", "</w>"}};
  // The unknown token is one of the vocabulary, or an added one, whose id the model does not know.
  if (vocab.contains(tokens.roles.at("unk_token"))) root["model"]["unk_token"] = tokens.roles.at("unk_token");
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merges);
  const json ends = {{"bos_token", tokens.roles.at("bos_token")}, {"eos_token", tokens.roles.at("eos_token")}};
  TITAN_ASSIGN_OR_RETURN(TokenizerFile file,
                         read_tokenizer_json(root, path, ends, absl::StrCat(folder, "/tokenizer_config.json")));
  TITAN_ASSIGN_OR_RETURN(Normalizer::Step lower_case, lower_case_of_words());
  file.normalizer.add(std::move(lower_case));
  file.prefix = {*file.bos_id};
  file.suffix = {*file.eos_id};
  // The class knows these names in any case, once the text is lower-cased.
  for (const auto& token : file.added_tokens) {
    if (token.content == kStartOfText || token.content == kEndOfText)
      file.whole_words.emplace_back(token.content, token.id);
  }
  auto tokenizer = make_pipeline_tokenizer(file);
  if (!tokenizer.ok()) return annotate(tokenizer.status(), absl::StrCat(folder, "/merges.txt"));
  return tokenizer;
}

}  // namespace titan::data
