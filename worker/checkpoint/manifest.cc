#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/storage/crc32c.h"
#include "worker/checkpoint/safetensors.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

// {"crc32c":"01234567",  -- the checksum covers everything after these 21 bytes.
constexpr std::string_view kPrefix = "{\"crc32c\":\"";
constexpr size_t kBody = kPrefix.size() + 8 + 2;

std::string hex(uint32_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(8, '0');
  for (int i = 7; i >= 0; --i, value >>= 4) text[static_cast<size_t>(i)] = kDigits[value & 15];
  return text;
}

std::string hex(const std::vector<uint32_t>& values) {
  std::string text;
  text.reserve(values.size() * 8);
  for (const uint32_t value : values) text += hex(value);
  return text;
}

absl::StatusOr<std::vector<uint32_t>> unhex(const std::string& text) {
  if (text.size() % 8 != 0) return absl::DataLossError("checksums are not groups of 8 hex digits");
  std::vector<uint32_t> values;
  for (size_t at = 0; at < text.size(); at += 8) {
    uint32_t value = 0;
    for (size_t i = 0; i < 8; ++i) {
      const char c = text[at + i];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return absl::DataLossError("checksums are not hex digits");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<uint32_t> unhex_one(const std::string& text) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<uint32_t> values, unhex(text));
  if (values.size() != 1) return absl::DataLossError("a checksum is not 8 hex digits");
  return values[0];
}

json to_json(const FileRecord& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_crc32c", hex(file.header_crc)}};
}

absl::StatusOr<FileRecord> file_from_json(const json& from) {
  FileRecord file{.name = from.at("name"), .bytes = from.at("bytes"), .header_bytes = from.at("header_bytes")};
  TITAN_ASSIGN_OR_RETURN(file.header_crc, unhex_one(from.at("header_crc32c")));
  if (file.name.empty() || file.name.find('/') != std::string::npos) {
    return absl::DataLossError(absl::StrCat("\"", file.name, "\" is not a file name"));
  }
  if (file.header_bytes < 8 || file.header_bytes > file.bytes)
    return absl::DataLossError(file.name + ": sizes make no sense");
  return file;
}

json to_json(const TensorRecord& tensor) {
  json pieces = json::array();
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back({{"file", piece.file},
                      {"begin", piece.begin},
                      {"offset", piece.box.offset},
                      {"shape", piece.box.shape},
                      {"crc32c", hex(piece.chunk_crcs)}});
  }
  return {{"key", tensor.key},
          {"dtype", safetensors_dtype(tensor.dtype).value()},
          {"shape", tensor.shape},
          {"pieces", std::move(pieces)}};
}

absl::StatusOr<TensorRecord> tensor_from_json(const json& from) {
  TensorRecord tensor{.key = from.at("key"), .shape = from.at("shape").get<std::vector<int64_t>>()};
  TITAN_ASSIGN_OR_RETURN(tensor.dtype, scalar_type(from.at("dtype").get<std::string>()));
  for (const json& part : from.at("pieces")) {
    Piece piece{.file = part.at("file"), .begin = part.at("begin")};
    piece.box = {part.at("offset").get<std::vector<int64_t>>(), part.at("shape").get<std::vector<int64_t>>()};
    TITAN_ASSIGN_OR_RETURN(piece.chunk_crcs, unhex(part.at("crc32c")));
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

// Everything a reader relies on: pieces inside their files, as many checksums as chunks, exact cover.
absl::Status check(const Manifest& manifest) {
  for (const TensorRecord& tensor : manifest.tensors) {
    // Before anything is counted: beyond 64 bits the elements of a huge shape are as many as those of a small one.
    if (TensorEntry{.dtype = tensor.dtype, .shape = tensor.shape}.bytes() < 0) {
      return absl::DataLossError(absl::StrCat(tensor.key, ": shape ", shape_text(tensor.shape), " is none"));
    }
    std::vector<Box> boxes;
    for (const Piece& piece : tensor.pieces) boxes.push_back(piece.box);
    TITAN_RETURN_IF_ERROR(annotate(check_cover(tensor.shape, boxes), tensor.key));
    for (const Piece& piece : tensor.pieces) {
      if (piece.file < 0 || piece.file >= static_cast<int>(manifest.files.size())) {
        return absl::DataLossError(absl::StrCat(tensor.key, ": no file number ", piece.file));
      }
      const FileRecord& file = manifest.files[static_cast<size_t>(piece.file)];
      const int64_t bytes = piece.box.elements() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
      if (piece.begin < file.header_bytes || bytes > file.bytes - piece.begin) {
        return absl::DataLossError(absl::StrCat(tensor.key, ": lies outside of ", file.name));
      }
      if (static_cast<int64_t>(piece.chunk_crcs.size()) != (bytes + kChunkBytes - 1) / kChunkBytes) {
        return absl::DataLossError(
            absl::StrCat(tensor.key, ": ", piece.chunk_crcs.size(), " checksums for ", bytes, " bytes"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> parse_body(const json& body) {
  if (body.at("format") != "titan.checkpoint") return absl::DataLossError("not a Titan checkpoint");
  if (const int version = body.at("version"); version != kManifestVersion) {
    return absl::DataLossError(
        absl::StrCat("format version ", version, ", this program reads ", kManifestVersion, ": use a newer Titan"));
  }
  Manifest manifest{
      .step = body.at("step"), .attempt = body.at("attempt"), .job_uid = body.at("job_uid"), .world = body.at("world")};
  const std::string kind = body.at("kind");
  if (kind != "full" && kind != "model") return absl::DataLossError(absl::StrCat("unknown kind \"", kind, "\""));
  manifest.full = kind == "full";
  manifest.load_step = body.at("load_step");
  manifest.titan_version = body.value("titan_version", "");
  manifest.model = body.value("model", json());
  if (!manifest.model.is_null() && !manifest.model.is_object()) return absl::DataLossError("\"model\" is no object");
  manifest.config = body.value("config", json());
  manifest.train_state = body.at("train_state");
  manifest.per_rank = body.at("per_rank").get<std::vector<json>>();
  for (const json& file : body.at("files")) {
    TITAN_ASSIGN_OR_RETURN(FileRecord record, file_from_json(file));
    manifest.files.push_back(std::move(record));
  }
  for (const json& tensor : body.at("tensors")) {
    TITAN_ASSIGN_OR_RETURN(TensorRecord record, tensor_from_json(tensor));
    manifest.tensors.push_back(std::move(record));
  }
  const auto by_key = [](const TensorRecord& a, const TensorRecord& b) { return a.key < b.key; };
  if (!std::is_sorted(manifest.tensors.begin(), manifest.tensors.end(), by_key)) {
    return absl::DataLossError("tensors are not sorted");
  }
  TITAN_RETURN_IF_ERROR(check(manifest));
  return manifest;
}

}  // namespace

const TensorRecord* Manifest::find(const std::string& key) const {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), key,
                                   [](const TensorRecord& tensor, const std::string& k) { return tensor.key < k; });
  return at != tensors.end() && at->key == key ? &*at : nullptr;
}

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json body = {{"format", "titan.checkpoint"},
                                 {"version", kManifestVersion},
                                 {"step", manifest.step},
                                 {"kind", manifest.full ? "full" : "model"},
                                 {"attempt", manifest.attempt},
                                 {"job_uid", manifest.job_uid},
                                 {"world", manifest.world},
                                 {"load_step", manifest.load_step},
                                 {"titan_version", manifest.titan_version},
                                 {"model", manifest.model},
                                 {"config", manifest.config},
                                 {"train_state", manifest.train_state},
                                 {"per_rank", manifest.per_rank},
                                 {"files", json::array()}};
  for (const FileRecord& file : manifest.files) body["files"].emplace_back(to_json(file));
  // One tensor a line, so that people and diff can read it. The opening brace stands before the checksum.
  std::string text = body.dump().substr(1);
  text.back() = ',';
  text += "\"tensors\":[";
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += to_json(manifest.tensors[i]).dump();
  }
  text += "\n]}\n";
  return absl::StrCat(std::string(kPrefix), hex(storage::crc32c(text.data(), text.size())), "\",", text);
}

absl::StatusOr<Manifest> manifest_from_text(std::string_view text) {
  if (text.size() <= kBody || text.substr(0, kPrefix.size()) != kPrefix) {
    return absl::DataLossError("not a Titan manifest, or cut short");
  }
  TITAN_ASSIGN_OR_RETURN(const uint32_t expected, unhex_one(std::string(text.substr(kPrefix.size(), 8))));
  const std::string_view body = text.substr(kBody);
  if (storage::crc32c(body.data(), body.size()) != expected || text.substr(kBody - 2, 2) != "\",") {
    return absl::DataLossError("checksum mismatch: the manifest is damaged");
  }
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::DataLossError("not a JSON object");
  try {
    return parse_body(parsed);
  } catch (const json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

json to_json(const ShardReport& report) {
  json tensors = json::array();
  for (const TensorRecord& tensor : report.tensors) tensors.push_back(to_json(tensor));
  return {{"file", report.has_file ? to_json(report.file) : json()},
          {"tensors", std::move(tensors)},
          {"per_rank", report.per_rank}};
}

absl::StatusOr<ShardReport> report_from_json(const json& from) {
  try {
    ShardReport report;
    report.has_file = !from.at("file").is_null();
    if (report.has_file) {
      TITAN_ASSIGN_OR_RETURN(report.file, file_from_json(from.at("file")));
    }
    for (const json& tensor : from.at("tensors")) {
      TITAN_ASSIGN_OR_RETURN(TensorRecord record, tensor_from_json(tensor));
      report.tensors.push_back(std::move(record));
    }
    report.per_rank = from.at("per_rank");
    return report;
  } catch (const json::exception& error) {
    return absl::InternalError(absl::StrCat("a rank's shard report cannot be read: ", error.what()));
  }
}

absl::Status merge(const std::vector<ShardReport>& reports, Manifest& manifest) {
  std::map<std::string, TensorRecord> tensors;
  for (const ShardReport& report : reports) {
    manifest.per_rank.push_back(report.per_rank);
    if (!report.has_file) continue;
    const int file = static_cast<int>(manifest.files.size());
    manifest.files.push_back(report.file);
    for (const TensorRecord& part : report.tensors) {
      TensorRecord& tensor = tensors[part.key];
      if (tensor.key.empty()) tensor = {.key = part.key, .dtype = part.dtype, .shape = part.shape};
      if (tensor.dtype != part.dtype || tensor.shape != part.shape) {
        return absl::InternalError(absl::StrCat("ranks disagree about the type or shape of ", part.key));
      }
      for (Piece piece : part.pieces) {
        piece.file = file;
        tensor.pieces.push_back(std::move(piece));
      }
    }
  }
  for (auto& [key, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  if (absl::Status bad = check(manifest); !bad.ok()) {
    return absl::InternalError(absl::StrCat("the ranks' slices do not make up whole tensors: ", bad.message()));
  }
  return absl::OkStatus();
}

}  // namespace titan::checkpoint
