// Reads documents as a job does, for comparison with Python packages. A line of input is a request, {"files": [..],
// "format": "..", "text_key": "..", "blank_lines": false, "max_bad": 100}; a line of output has the texts, the warnings
// and the error that ended the reading. With "seek" every document is read again from its own position.
#include <iostream>

#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/document_reader.h"

namespace {

using titan::data::Document;
using titan::data::DocumentReader;

DocumentReader::Options options_of(const nlohmann::json& request) {
  return {.files = request.at("files"),
          .kind = {.format = titan::data_files::format_from_name(request.at("format").get<std::string>()).value(),
                   .text_key = request.value("text_key", "text"),
                   .blank_lines = request.value("blank_lines", false)},
          .max_bad_lines = request.value("max_bad", 100)};
}

// Reads a document again from its start. Returns what differs, or "".
std::string read_again(const DocumentReader::Options& options, const Document& document) {
  DocumentReader again(options);
  if (const absl::Status status = again.seek(document.position, 0); !status.ok()) return std::string(status.message());
  const auto found = again.next();
  if (!found.ok()) return std::string(found.status().message());
  return found->has_value() && (*found)->text == document.text ? "" : "another document";
}

nlohmann::json answer(const nlohmann::json& request) {
  const DocumentReader::Options options = options_of(request);
  DocumentReader reader(options);
  nlohmann::json texts = nlohmann::json::array();
  nlohmann::json result;
  while (true) {
    const auto document = reader.next();
    if (!document.ok()) {
      result["error"] = std::string(document.status().message());
      break;
    }
    if (!document->has_value()) break;
    texts.push_back((*document)->text);
    if (!request.value("seek", false)) continue;
    if (const std::string problem = read_again(options, **document); !problem.empty()) {
      result["seek"] = problem;
    }
  }
  result["texts"] = std::move(texts);
  result["warnings"] = reader.take_warnings();
  return result;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(nlohmann::json::parse(line)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
  }
}
