#include "common/plan/hf_config/weights_header.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // The Python library's limit.
constexpr size_t kMostFiles = 100;
// What the name of every family's embedding ends with (worker/rank/model/hf_names.cc).
constexpr char kEmbedding[] = "embed_tokens.weight";

std::vector<std::string> weights_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  files.resize(std::min(files.size(), kMostFiles));
  return files;
}

}  // namespace

absl::StatusOr<WeightsHeader> read_weights_header(storage::ReadableFile& file, const std::string& path) {
  const auto bad = [&](auto... what) {
    return absl::DataLossError(absl::StrCat(path, ": not a safetensors file: ", what...));
  };
  uint64_t length = 0;
  if (file.size() < 8) return bad("only ", file.size(), " bytes");
  TITAN_RETURN_IF_ERROR(file.read(0, 8, reinterpret_cast<char*>(&length)));
  if (length > kMaxHeader || static_cast<int64_t>(length) > file.size() - 8) {
    return bad("header of ", length, " bytes in a file of ", file.size());
  }
  std::string text(length, '\0');
  TITAN_RETURN_IF_ERROR(file.read(8, static_cast<int64_t>(length), text.data()));
  json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return bad("the header is not a JSON object");
  return WeightsHeader{std::move(header), 8 + static_cast<int64_t>(length)};
}

absl::StatusOr<std::string> embedding_misfit(const std::string& folder, const models::ModelSpec& spec) {
  const json here = {spec.vocab_size, spec.dim};
  std::string misfit;
  int found = 0;
  for (const std::string& path : weights_in(folder)) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::ReadableFile> file, storage::posix_files().open(path));
    TITAN_ASSIGN_OR_RETURN(const WeightsHeader header, read_weights_header(*file, path));
    for (const auto& [name, tensor] : header.tensors.items()) {
      if (name != kEmbedding && !absl::EndsWith(name, absl::StrCat(".", kEmbedding))) continue;
      const json shape = tensor.is_object() ? tensor.value("shape", json()) : json();
      if (!shape.is_array() || shape.size() != 2) continue;
      ++found;
      if (shape == here) continue;
      misfit = absl::StrCat(std::filesystem::path(path).filename().string(), " holds ", name, " of ", shape.dump(),
                            ", and this model has a vocabulary of ", spec.vocab_size, " and dim ", spec.dim);
    }
  }
  return found == 1 ? misfit : "";
}

}  // namespace titan::hf_config
