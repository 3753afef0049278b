#include "worker/rank/tools/data/encode.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/not_applied.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokenizer/utf8.h"
#include "worker/rank/tools/data/finish.h"
#include "worker/rank/tools/data/token_offsets.h"

namespace titan::tools {
namespace {

using nlohmann::json;

struct EncodeOptions {
  std::string tokenizer, output = "text";
  std::vector<std::string> texts, files;
  bool bos = false, eos = false;
};

struct Text {
  std::string name;  // For complaints.
  std::string bytes;
};

struct Encoded {
  std::vector<int32_t> tokens;  // BOS and EOS included.
  std::vector<std::string> spellings;
  std::vector<json> offsets;  // [begin, end], or null.
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

// Without what a terminal would take for a command; bytes that are no text as numbers.
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

absl::Status run_encode(const EncodeOptions& options) {
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
      "encode", "Prints the tokens of each text, of arguments, files, or standard input when there is neither");
  const auto options = std::make_shared<EncodeOptions>();
  command->add_option("text", options->texts, "Texts; behind -- they may begin with a dash");
  command->add_option("-f,--file", options->files, "Files, each one text as it is, its last line end included");
  command
      ->add_option(
          "--tokenizer", options->tokenizer,
          "Folder with tokenizer.json, tokenizer.model (SentencePiece, or tiktoken as of Llama 3) or *.tiktoken")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "text: the ids of a text on a line; table: a token a line, with the bytes of the text that it "
                   "covers; json: an "
                   "object a line with ids, pieces and offsets (null where the tokenizer changed the text first)")
      ->check(CLI::IsMember({"text", "table", "json"}))
      ->capture_default_str();
  command->add_flag("--bos", options->bos, "Put the token that begins a text before it");
  command->add_flag("--eos", options->eos, "And the one that ends it behind it");
  command->callback([options] { finish(run_encode(*options)); });
}

}  // namespace titan::tools
