#include "common/io/tokenizer_files/find.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/io/tokenizer_files/tiktoken.h"

namespace titan::tokenizer_files {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

std::vector<std::string> files_with(const std::string& folder, const char* ending) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (absl::EndsWith(entry.path().filename().string(), ending)) files.push_back(entry.path().string());
  }
  return files;
}

}  // namespace

absl::StatusOr<Found> find_tokenizer(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  const std::string json = absl::StrCat(folder, "/tokenizer.json"), model = absl::StrCat(folder, "/tokenizer.model");
  if (auto bytes = read(json)) return Found{FileKind::kJson, json, *std::move(bytes)};
  if (auto bytes = read(model)) {
    // The encoded message of a SentencePiece model begins with its first piece.
    if (looks_like_tiktoken(*bytes)) return Found{FileKind::kTiktoken, model, *std::move(bytes)};
    if (!bytes->empty() && (*bytes)[0] == '\n') return Found{FileKind::kSentencePiece, model, *std::move(bytes)};
    return absl::InvalidArgumentError(absl::StrCat(
        model, ": is neither a SentencePiece model nor tiktoken's lines of a token in base64 and its rank"));
  }
  const std::vector<std::string> others = files_with(folder, ".tiktoken");
  if (others.size() == 1) {
    if (auto bytes = read(others[0])) return Found{FileKind::kTiktoken, others[0], *std::move(bytes)};
  }
  return absl::NotFoundError(absl::StrCat(folder, ": holds ", others.size() > 1 ? "several *.tiktoken and " : "",
                                          "no tokenizer.json (Hugging Face), no ",
                                          "tokenizer.model (SentencePiece, or tiktoken as of Llama 3) and no single "
                                          "*.tiktoken; is the folder a tokenizer's?"));
}

}  // namespace titan::tokenizer_files
