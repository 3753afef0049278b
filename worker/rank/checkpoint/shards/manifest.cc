#include "worker/rank/checkpoint/shards/manifest.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

// The text begins with {"crc32c":"01234567", and the checksum covers everything after these 21 bytes.
constexpr std::string_view kPrefix = "{\"crc32c\":\"";
constexpr size_t kBody = kPrefix.size() + 8 + 2;

// Converts a tensor of version 1, with its pieces.
json listed_to_json(const TensorRecord& tensor) {
  json pieces = json::array();
  for (const TensorPiece& piece : tensor.pieces) {
    pieces.push_back({{"file", piece.file},
                      {"begin", piece.begin},
                      {"offset", piece.box.offset},
                      {"shape", piece.box.shape},
                      {"crc32c", hex(piece.chunk_crcs)}});
  }
  json text = to_json(tensor);
  text["pieces"] = std::move(pieces);
  return text;
}

absl::StatusOr<TensorRecord> listed_from_json(const json& from) {
  TITAN_ASSIGN_OR_RETURN(TensorRecord tensor, tensor_from_json(from));
  for (const json& part : from.at("pieces")) {
    TensorPiece piece{.file = static_cast<int>(integer_in(part.at("file"))), .begin = integer_in(part.at("begin"))};
    piece.box = {integers_in(part.at("offset")), integers_in(part.at("shape"))};
    TITAN_ASSIGN_OR_RETURN(piece.chunk_crcs, unhex(part.at("crc32c")));
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

absl::Status check_pieces(const TensorRecord& tensor, const std::vector<FileRecord>& files) {
  std::vector<Box> boxes;
  for (const TensorPiece& piece : tensor.pieces) boxes.push_back(piece.box);
  TITAN_RETURN_IF_ERROR(annotate(check_cover(tensor.shape, boxes), tensor.key));
  for (const TensorPiece& piece : tensor.pieces) {
    if (piece.file < 0 || piece.file >= static_cast<int>(files.size())) {
      return absl::DataLossError(absl::StrCat(tensor.key, ": no file number ", piece.file));
    }
    const FileRecord& file = files[static_cast<size_t>(piece.file)];
    const int64_t bytes = piece.box.elements() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
    if (piece.begin < file.header_bytes || bytes > file.bytes - piece.begin) {
      return absl::DataLossError(absl::StrCat(tensor.key, ": lies outside of ", file.name));
    }
    if (static_cast<int64_t>(piece.chunk_crcs.size()) != (bytes + kChunkBytes - 1) / kChunkBytes) {
      return absl::DataLossError(
          absl::StrCat(tensor.key, ": ", piece.chunk_crcs.size(), " checksums for ", bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status parse_tensors(const json& body, Manifest& manifest) {
  const bool listed = manifest.version == 1;
  for (const json& tensor : body.at("tensors")) {
    TITAN_ASSIGN_OR_RETURN(TensorRecord record, listed ? listed_from_json(tensor) : tensor_from_json(tensor));
    manifest.tensors.push_back(std::move(record));
  }
  const auto ascend = [](const TensorRecord& a, const TensorRecord& b) { return a.key >= b.key; };
  if (std::adjacent_find(manifest.tensors.begin(), manifest.tensors.end(), ascend) != manifest.tensors.end()) {
    return absl::DataLossError("tensors are not sorted");
  }
  if (listed) return absl::OkStatus();
  for (const json& row : body.at("rows")) manifest.rows.push_back(row_from_json(row));
  return absl::OkStatus();
}

// Writes one entry per line, for people and for diff.
template <typename List, typename ToJson>
void append_lines(const char* name, const List& list, ToJson&& entry, std::string& text) {
  absl::StrAppend(&text, ",\"", name, "\":[");
  for (size_t i = 0; i < list.size(); ++i) absl::StrAppend(&text, i == 0 ? "\n" : ",\n", entry(list[i]).dump());
  text += "\n]";
}

absl::StatusOr<Manifest> parse_body(const json& body) {
  if (body.at("format") != "titan.checkpoint") return absl::DataLossError("not a Titan checkpoint");
  const int64_t version = integer_in(body.at("version"));
  if (version < 1 || version > kManifestVersion) {
    return absl::DataLossError(absl::StrCat("format version ", version, ", this program reads those up to ",
                                            kManifestVersion, ": use a newer Titan"));
  }
  Manifest manifest{.version = static_cast<int>(version),
                    .step = integer_in(body.at("step")),
                    .attempt = static_cast<int>(integer_in(body.at("attempt"))),
                    .job_uid = body.at("job_uid"),
                    .world = static_cast<int>(integer_in(body.at("world")))};
  const std::string kind = body.at("kind");
  if (kind != "full" && kind != "model") return absl::DataLossError(absl::StrCat("unknown kind \"", kind, "\""));
  manifest.full = kind == "full";
  manifest.load_step = integer_in(body.at("load_step"));
  manifest.titan_version = body.value("titan_version", "");
  manifest.model = body.value("model", json());
  if (!manifest.model.is_null() && !manifest.model.is_object())
    return absl::DataLossError("\"model\" is not an object");
  manifest.config = body.value("config", json());
  manifest.train_state = body.at("train_state");
  manifest.per_rank = body.at("per_rank").get<std::vector<json>>();
  for (const json& file : body.at("files")) {
    TITAN_ASSIGN_OR_RETURN(FileRecord record, file_from_json(file));
    manifest.files.push_back(std::move(record));
  }
  TITAN_RETURN_IF_ERROR(parse_tensors(body, manifest));
  TITAN_RETURN_IF_ERROR(check(manifest));
  return manifest;
}

}  // namespace

const TensorRecord* Manifest::find(const std::string& key) const {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), key,
                                   [](const TensorRecord& tensor, const std::string& k) { return tensor.key < k; });
  return at != tensors.end() && at->key == key ? &*at : nullptr;
}

std::vector<int64_t> Manifest::piece_counts() const {
  const PlacementIndex placement(rows, tensors.size());
  std::vector<int64_t> counts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    counts.push_back(version == 1 ? static_cast<int64_t>(tensors[i].pieces.size()) : placement.pieces_of(i));
  }
  return counts;
}

absl::Status check(const Manifest& manifest) {
  int64_t data = 0, file_bytes = 0;
  for (const FileRecord& file : manifest.files) {
    if (file.indexed() != (manifest.version > 1))
      return absl::DataLossError(file.name + ": its record has another format version than the manifest");
    if (__builtin_add_overflow(file_bytes, file.bytes, &file_bytes))
      return absl::DataLossError(file.name + ": too large");
  }
  for (const TensorRecord& tensor : manifest.tensors) {
    TITAN_RETURN_IF_ERROR(check_shape(tensor));
    if (manifest.version == 1) {
      TITAN_RETURN_IF_ERROR(check_pieces(tensor, manifest.files));
    } else if (const TensorEntry entry{.dtype = tensor.dtype, .shape = tensor.shape};
               __builtin_add_overflow(data, entry.bytes(), &data) || data > file_bytes) {
      return absl::DataLossError(tensor.key + ": larger than its files");
    }
  }
  return manifest.version == 1 ? absl::OkStatus()
                               : check_placement(manifest.rows, manifest.tensors, manifest.files.size());
}

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json body = {{"format", "titan.checkpoint"},
                                 {"version", manifest.version},
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
                                 {"per_rank", manifest.per_rank}};
  // The opening brace comes before the checksum.
  std::string text = body.dump().substr(1);
  text.pop_back();
  append_lines(
      "files", manifest.files, [](const FileRecord& file) { return to_json(file); }, text);
  if (manifest.version == 1) {
    append_lines("tensors", manifest.tensors, listed_to_json, text);
  } else {
    append_lines(
        "rows", manifest.rows, [](const PlacementRow& row) { return to_json(row); }, text);
    append_lines(
        "tensors", manifest.tensors, [](const TensorRecord& tensor) { return to_json(tensor); }, text);
  }
  text += "}\n";
  const uint32_t crc = storage::crc32c(text.data(), text.size());
  return absl::StrCat(std::string(kPrefix), hex({crc}), "\",", text);
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

}  // namespace titan::checkpoint
