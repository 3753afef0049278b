#include "worker/rank/checkpoint/shards/records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/shards/progression.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {

using nlohmann::json;

std::string hex(const std::vector<uint32_t>& values) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(values.size() * 8);
  for (const uint32_t value : values) {
    for (int shift = 28; shift >= 0; shift -= 4) text.push_back(kDigits[value >> shift & 15]);
  }
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
  json text = {{"name", file.name}, {"bytes", file.bytes}};
  if (file.indexed()) {
    text["index_bytes"] = file.index_bytes;
    text["index_crc32c"] = hex({file.index_crc});
  } else {
    text["header_bytes"] = file.header_bytes;
    text["header_crc32c"] = hex({file.header_crc});
  }
  return text;
}

absl::StatusOr<FileRecord> file_from_json(const json& from) {
  FileRecord file{.name = from.at("name"), .bytes = integer_in(from.at("bytes"))};
  if (from.contains("index_bytes")) {
    file.index_bytes = integer_in(from.at("index_bytes"));
    TITAN_ASSIGN_OR_RETURN(file.index_crc, unhex_one(from.at("index_crc32c")));
  } else {
    file.header_bytes = integer_in(from.at("header_bytes"));
    TITAN_ASSIGN_OR_RETURN(file.header_crc, unhex_one(from.at("header_crc32c")));
  }
  if (file.name.empty() || file.name.find('/') != std::string::npos) {
    return absl::DataLossError(absl::StrCat("\"", file.name, "\" is not a file name"));
  }
  const int64_t known = file.indexed() ? file.index_bytes : file.header_bytes;
  if (known < 8 || known > file.bytes) return absl::DataLossError(file.name + ": sizes make no sense");
  return file;
}

json to_json(const TensorRecord& tensor) {
  return {{"key", tensor.key}, {"dtype", safetensors_dtype(tensor.dtype).value()}, {"shape", tensor.shape}};
}

absl::StatusOr<TensorRecord> tensor_from_json(const json& from) {
  TensorRecord tensor{.key = from.at("key"), .shape = integers_in(from.at("shape"))};
  TITAN_ASSIGN_OR_RETURN(tensor.dtype, scalar_type(from.at("dtype").get<std::string>()));
  return tensor;
}

absl::Status check_shape(const TensorRecord& tensor) {
  // Before anything is counted: beyond 64 bits the elements of a huge shape are as many as those of a small one.
  const bool countable =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t size) { return size < int64_t{1} << 60; });
  if (countable && TensorEntry{.dtype = tensor.dtype, .shape = tensor.shape}.bytes() >= 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(tensor.key, ": shape ", shape_text(tensor.shape), " is none"));
}

}  // namespace titan::checkpoint
