#include "worker/rank/tools/data/decode.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/tools/data/finish.h"

namespace titan::tools {
namespace {

using nlohmann::json;

struct DecodeOptions {
  std::string tokenizer, output = "text";
  std::vector<std::string> ids;
};

// "1 2", "1,2" and "[1, 2]" are the same.
absl::StatusOr<std::vector<int32_t>> parse_ids(const std::string& words, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const absl::string_view word : absl::StrSplit(words, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    int32_t id = -1;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id > tokenizer.max_id()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is no token: they are numbers from 0 to ", tokenizer.max_id()));
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
      "decode", "Prints the text of tokens: of those in the arguments, or of each line of standard input");
  const auto options = std::make_shared<DecodeOptions>();
  command->add_option("ids", options->ids, "Numbers of tokens, as encode prints them; commas and brackets do no harm");
  command->add_option("--tokenizer", options->tokenizer, "The folder that encode took")->required();
  command->add_option("-o,--output", options->output, "text, or json: an object with ids and text")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options] { finish(run_decode(*options)); });
}

}  // namespace titan::tools
