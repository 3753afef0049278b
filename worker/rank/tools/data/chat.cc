#include "worker/rank/tools/data/chat.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/datasets.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/chat/label_tokens.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokenizer/utf8.h"
#include "worker/rank/tools/data/finish.h"

namespace titan::tools {
namespace {

using nlohmann::json;

struct ChatOptions {
  std::string path, tokenizer, messages_key = "messages", train_on = "assistant", output = "text", format = "auto";
  int64_t rows = 1;
};

// A row as a job reads it.
struct ShownRow {
  std::string name, problem;
  data::DocumentText text;
  std::vector<int32_t> tokens;  // Marked where they are not labels.
};

ShownRow take(const data::DocumentFile& file, data::DocumentText text, data::Tokenizer& tokenizer) {
  ShownRow row{.name = file.name(), .problem = text.problem, .text = std::move(text)};
  if (!row.problem.empty()) return row;
  const absl::Status encoded = encode_labels(tokenizer, row.text.text, *row.text.labels, row.tokens);
  if (!encoded.ok()) row.problem = std::string(encoded.message());
  return row;
}

// Puts labels between brackets that are unlikely to occur in text.
void print_text(const ShownRow& row) {
  std::string shown;
  size_t at = 0;
  for (const auto& [begin, end] : *row.text.labels) {
    absl::StrAppend(&shown, row.text.text.substr(at, begin - at), "⟦", row.text.text.substr(begin, end - begin), "⟧");
    at = end;
  }
  shown += row.text.text.substr(at);
  const auto labels = std::count_if(row.tokens.begin(), row.tokens.end(), data::is_label);
  std::cout << shown << "\n# " << row.name << ": " << row.tokens.size() << " tokens, " << labels
            << " of them labels (between ⟦ and ⟧)\n";
}

void print_table(const ShownRow& row, const data::Tokenizer& tokenizer) {
  for (const int32_t token : row.tokens) {
    const std::string spelling = tokenizer.spelling(data::token_of(token));
    std::cout << data::token_of(token) << "\t" << (data::is_label(token) ? "label" : "-") << "\t\""
              << (data::is_utf8(spelling) ? absl::Utf8SafeCHexEscape(spelling) : absl::CHexEscape(spelling)) << "\"\n";
  }
}

void print_json(const ShownRow& row) {
  json object = {{"row", row.name}};
  if (row.problem.empty()) {
    object["text"] = row.text.text;
    object["labels"] = *row.text.labels;
    for (const int32_t token : row.tokens) {
      object["ids"].push_back(data::token_of(token));
      object["mask"].push_back(data::is_label(token) ? 1 : 0);
    }
  } else {
    object["problem"] = row.problem;
  }
  std::cout << object.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
}

void print(const std::string& output, const ShownRow& row, const data::Tokenizer& tokenizer) {
  if (output == "json") return print_json(row);
  if (!row.problem.empty()) {
    std::cout << "# " << row.name << ": " << row.problem << ", would be skipped\n";
  } else if (output == "table") {
    print_table(row, tokenizer);
  } else {
    print_text(row);
  }
}

absl::Status run_chat(const ChatOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const auto tokenizer, data::Tokenizer::load(options.tokenizer));
  for (const std::string& note : tokenizer_files::not_applied(options.tokenizer))
    std::cerr << "warning: " << note << "\n";
  const data_files::DatasetFormat format =
      data_files::format_from_name(options.format).value_or(data_files::DatasetFormat::kAuto);
  TITAN_ASSIGN_OR_RETURN(const data_files::DatasetFiles found, data_files::find_dataset_files(options.path, format));
  data::FileKind kind{.format = found.format, .messages_key = options.messages_key};
  if (data_files::holds_tokens(found.format) || found.format == data_files::DatasetFormat::kText) {
    return absl::InvalidArgumentError(absl::StrCat(options.path, ": holds ", data_files::name(found.format),
                                                   ", and conversations are rows of JSON lines or Parquet"));
  }
  TITAN_ASSIGN_OR_RETURN(kind.chat,
                         data::Chat::load(options.tokenizer, options.messages_key, options.train_on == "all"));
  int64_t shown = 0;
  for (const std::string& path : found.files) {
    TITAN_ASSIGN_OR_RETURN(const auto file, data::DocumentFile::open(path, kind, {}));
    while (options.rows == 0 || shown < options.rows) {
      TITAN_ASSIGN_OR_RETURN(const bool more, file->next());
      if (!more) break;
      TITAN_ASSIGN_OR_RETURN(data::DocumentText text, file->text());
      print(options.output, take(*file, std::move(text), *tokenizer), *tokenizer);
      ++shown;
    }
  }
  return absl::OkStatus();
}

}  // namespace

void add_chat(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "chat", "Shows conversations as a job trains on them: the text that the chat template makes, and its labels");
  const auto options = std::make_shared<ChatOptions>();
  command->add_option("path", options->path, "JSON lines or Parquet: a folder, a glob or a file")->required();
  command->add_option("--tokenizer", options->tokenizer, "Folder of the tokenizer, with its chat template")->required();
  command->add_option("--messages-key", options->messages_key, "Key of the messages (dataloader.messages_key)")
      ->capture_default_str();
  command->add_option("--train-on", options->train_on, "Which tokens are labels (dataloader.train_on)")
      ->check(CLI::IsMember({"assistant", "all"}))
      ->capture_default_str();
  command->add_option("--format", options->format, "Format of the files (dataloader.format)")
      ->check(CLI::IsMember({"auto", "jsonl", "parquet"}))
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Number of rows to show, from the first; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option(
          "-o,--output", options->output,
          "text: labels between brackets; table: one token per line; json: one object per row with text, labels "
          "(bytes), ids and mask, or its problem")
      ->check(CLI::IsMember({"text", "table", "json"}))
      ->capture_default_str();
  command->callback([options] { finish(run_chat(*options)); });
}

}  // namespace titan::tools
