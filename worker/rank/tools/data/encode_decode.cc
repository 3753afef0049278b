#include "worker/rank/tools/data/encode_decode.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/prompt_tokenizer.h"
#include "worker/rank/data/tokenizer/utf8.h"
#include "worker/rank/tools/data/finish.h"

namespace titan::tools {
namespace {

using nlohmann::json;

struct EncodeOptions {
  std::string tokenizer, output = "text";
  std::vector<std::string> texts, files;
  bool bos = false, eos = false;
  int64_t pad_to = -1;  // Tokens of a prompt; 0: the folder's own number; negative: not a prompt.
};

struct Text {
  std::string name;  // For error messages.
  std::string bytes;
};

struct Encoded {
  std::vector<int32_t> tokens;  // Including BOS and EOS.
  std::vector<std::string> spellings;
  std::vector<json> offsets;  // [begin, end] or null.
};

absl::StatusOr<std::vector<Text>> read_texts(const EncodeOptions& options) {
  std::vector<Text> texts;
  for (const std::string& text : options.texts) texts.push_back({absl::StrCat("text ", texts.size() + 1), text});
  for (const std::string& path : options.files) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream bytes;
    if (!in || !(bytes << in.rdbuf())) {
      return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty; --file takes a file of text"));
    }
    texts.push_back({path, bytes.str()});
  }
  if (texts.empty()) texts.push_back({"standard input", {std::istreambuf_iterator<char>(std::cin), {}}});
  return texts;
}

absl::Status check_ends(const EncodeOptions& options, const data::Tokenizer& tokenizer) {
  if ((!options.bos || tokenizer.bos_id()) && (!options.eos || tokenizer.eos_id())) return absl::OkStatus();
  const bool bos = options.bos && !tokenizer.bos_id();
  return absl::InvalidArgumentError(absl::StrCat(options.tokenizer, ": the tokenizer has no ", bos ? "BOS" : "EOS",
                                                 " token; leave --", bos ? "bos" : "eos", " out"));
}

absl::StatusOr<Encoded> encode(const EncodeOptions& options, const Text& text, data::Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  if (absl::Status status = tokenizer.encode(text.bytes, tokens); !status.ok()) return annotate(status, text.name);
  const auto offsets = token_offsets(text.bytes, tokens, tokenizer);
  Encoded encoded;
  const auto add = [&](int32_t token, json offset) {
    encoded.tokens.push_back(token);
    encoded.spellings.push_back(tokenizer.spelling(token));
    encoded.offsets.push_back(std::move(offset));
  };
  if (options.bos) add(*tokenizer.bos_id(), nullptr);
  for (size_t i = 0; i < tokens.size(); ++i) {
    add(tokens[i], offsets ? json::array({(*offsets)[i].first, (*offsets)[i].second}) : json());
  }
  if (options.eos) add(*tokenizer.eos_id(), nullptr);
  return encoded;
}

// Escapes control characters for the terminal, and shows bytes that are not UTF-8 as numbers.
std::string shown(const std::string& spelling) {
  return data::is_utf8(spelling) ? absl::Utf8SafeCHexEscape(spelling) : absl::CHexEscape(spelling);
}

void print(const std::string& output, const Encoded& encoded) {
  if (output == "text") {
    std::cout << absl::StrJoin(encoded.tokens, " ") << "\n";
    return;
  }
  if (output == "json") {
    const json object = {{"ids", encoded.tokens}, {"pieces", encoded.spellings}, {"offsets", encoded.offsets}};
    std::cout << object.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
    return;
  }
  for (size_t i = 0; i < encoded.tokens.size(); ++i) {
    const json& offset = encoded.offsets[i];
    std::cout << encoded.tokens[i] << "\t"
              << (offset.is_null() ? "-" : absl::StrCat(offset[0].get<size_t>(), "-", offset[1].get<size_t>()))
              << "\t\"" << shown(encoded.spellings[i]) << "\"\n";
  }
}

// Prints each text as a prompt for a text encoder, with the tokens around it and padding.
absl::Status run_encode_prompts(const EncodeOptions& options) {
  TITAN_ASSIGN_OR_RETURN(data::PromptTokenizer prompts, data::PromptTokenizer::load(options.tokenizer, options.pad_to));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Text> texts, read_texts(options));
  std::vector<int64_t> ids(static_cast<size_t>(prompts.length()));
  for (const Text& text : texts) {
    if (absl::Status status = prompts.encode(text.bytes, ids.data()); !status.ok()) return annotate(status, text.name);
    Encoded encoded;
    encoded.tokens.assign(ids.begin(), ids.end());
    encoded.offsets.resize(ids.size());
    for (const int32_t token : encoded.tokens) encoded.spellings.push_back(prompts.tokenizer().spelling(token));
    print(options.output, encoded);
  }
  return absl::OkStatus();
}

absl::Status run_encode(const EncodeOptions& options) {
  if (options.pad_to >= 0) return run_encode_prompts(options);
  TITAN_ASSIGN_OR_RETURN(const auto tokenizer, data::Tokenizer::load(options.tokenizer));
  for (const std::string& note : tokenizer_files::not_applied(options.tokenizer))
    std::cerr << "warning: " << note << "\n";
  TITAN_RETURN_IF_ERROR(check_ends(options, *tokenizer));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Text> texts, read_texts(options));
  for (const Text& text : texts) {
    TITAN_ASSIGN_OR_RETURN(const Encoded encoded, encode(options, text, *tokenizer));
    print(options.output, encoded);
  }
  return absl::OkStatus();
}

}  // namespace

void add_encode(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "encode", "Prints the tokens of each text, from arguments, files, or otherwise standard input");
  const auto options = std::make_shared<EncodeOptions>();
  command->add_option("text", options->texts, "Texts; after -- they may begin with a dash");
  command->add_option("-f,--file", options->files, "Files, each read as one text including its last line break");
  command
      ->add_option(
          "--tokenizer", options->tokenizer,
          "Folder with tokenizer.json, tokenizer.model (SentencePiece, or tiktoken as of Llama 3), *.tiktoken, "
          "spiece.model (T5), or vocab.json and merges.txt (CLIP)")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "text: the ids of a text on one line; table: one token per line, with the bytes of the text that it "
                   "covers; json: an "
                   "object per line with ids, pieces and offsets (null where the tokenizer changed the text first)")
      ->check(CLI::IsMember({"text", "table", "json"}))
      ->capture_default_str();
  auto* bos = command->add_flag("--bos", options->bos, "Prepend the token that begins a text");
  auto* eos = command->add_flag("--eos", options->eos, "Append the token that ends a text");
  command
      ->add_option(
          "--pad-to", options->pad_to,
          "Print the ids that T5's or CLIP's text encoder gets for a prompt: this many, with the tokens around "
          "the text, cut or padded; 0 takes the number from the folder")
      ->check(CLI::NonNegativeNumber)
      ->excludes(bos)
      ->excludes(eos);
  command->callback([options] { finish(run_encode(*options)); });
}

namespace {

struct DecodeOptions {
  std::string tokenizer, output = "text";
  std::vector<std::string> ids;
};

// Accepts "1 2", "1,2" and "[1, 2]" alike.
absl::StatusOr<std::vector<int32_t>> parse_ids(const std::string& words, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const absl::string_view word : absl::StrSplit(words, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    int32_t id = -1;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id > tokenizer.max_id()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is not a token id: ids are numbers from 0 to ", tokenizer.max_id()));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::Status print_text(const std::string& words, const DecodeOptions& options, const data::Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, parse_ids(words, tokenizer));
  const std::string text = tokenizer.decode(ids);
  if (options.output == "text") {
    std::cout << text << "\n";
  } else {
    std::cout << json{{"ids", ids}, {"text", text}}.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
  }
  return absl::OkStatus();
}

absl::Status run_decode(const DecodeOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const auto tokenizer, data::Tokenizer::load(options.tokenizer));
  if (!options.ids.empty()) return print_text(absl::StrJoin(options.ids, " "), options, *tokenizer);
  int number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (absl::Status status = print_text(line, options, *tokenizer); !status.ok())
      return annotate(status, absl::StrCat("line ", number));
  }
  return absl::OkStatus();
}

}  // namespace

void add_decode(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "decode", "Prints the text of token ids, from the arguments or from each line of standard input");
  const auto options = std::make_shared<DecodeOptions>();
  command->add_option("ids", options->ids, "Token ids, as encode prints them; commas and brackets are ignored");
  command->add_option("--tokenizer", options->tokenizer, "The same folder as for encode")->required();
  command->add_option("-o,--output", options->output, "text, or json: an object with ids and text")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options] { finish(run_decode(*options)); });
}

std::optional<std::vector<std::pair<size_t, size_t>>> token_offsets(std::string_view text,
                                                                    const std::vector<int32_t>& tokens,
                                                                    const data::Tokenizer& tokenizer) {
  std::vector<std::pair<size_t, size_t>> offsets;
  size_t at = 0;
  for (const int32_t token : tokens) {
    const std::string bytes = tokenizer.bytes(token);
    std::string_view spelled = bytes;
    const auto comes = [&] { return text.substr(at, spelled.size()) == spelled; };
    if (!comes() && spelled.substr(0, 1) == " ") spelled.remove_prefix(1);
    if (!comes()) return std::nullopt;
    offsets.emplace_back(at, at + spelled.size());
    at += spelled.size();
  }
  return at == text.size() ? std::optional(offsets) : std::nullopt;
}

}  // namespace titan::tools
