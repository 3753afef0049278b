#include "worker/rank/checkpoint/shards/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/status/status.h"
#include "common/plan/hf_config/model_match.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint {
namespace {

constexpr int64_t kAlignment = 64;

constexpr std::pair<const char*, c10::ScalarType> kTypes[] = {
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
};

// Returns the element count times the element size; -1 if a dimension is negative or the product overflows.
int64_t checked_bytes(const std::vector<int64_t>& shape, c10::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

// Returns whether all numbers are integers: JSON reads a number beyond 64 bits as a fraction.
bool whole_numbers(const nlohmann::json& list) {
  return std::all_of(list.begin(), list.end(), [](const nlohmann::json& number) { return number.is_number_integer(); });
}

}  // namespace

absl::StatusOr<std::string> safetensors_dtype(c10::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return std::string(name);
  }
  return absl::InvalidArgumentError(absl::StrCat("safetensors has no type for ", c10::toString(type)));
}

absl::StatusOr<c10::ScalarType> scalar_type(const std::string& safetensors_dtype) {
  for (const auto& [name, known] : kTypes) {
    if (safetensors_dtype == name) return known;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown safetensors dtype \"", safetensors_dtype, "\""));
}

int64_t TensorEntry::bytes() const { return checked_bytes(shape, dtype); }

absl::StatusOr<Layout> layout(std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata) {
  std::vector<size_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return c10::elementSize(entries[a].dtype) > c10::elementSize(entries[b].dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const size_t i : order) {
    TensorEntry& entry = entries[i];
    TITAN_ASSIGN_OR_RETURN(const std::string dtype, safetensors_dtype(entry.dtype));
    if (header.contains(entry.key)) {
      return absl::InvalidArgumentError(absl::StrCat("safetensors: key \"", entry.key, "\" appears twice"));
    }
    entry.begin = end;
    end += entry.bytes();
    header[entry.key] = {{"dtype", dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, end}}};
  }
  std::string text = header.dump();
  text.append((kAlignment - (8 + text.size()) % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  Layout result;
  result.header.assign(reinterpret_cast<const char*>(&length), 8);
  result.header += text;
  for (TensorEntry& entry : entries) entry.begin += static_cast<int64_t>(result.header.size());
  result.file_bytes = static_cast<int64_t>(result.header.size()) + end;
  return result;
}

absl::StatusOr<std::map<std::string, TensorEntry>> read_header(storage::ReadableFile& file, const std::string& path) {
  const auto bad = [&](auto... what) {
    return absl::DataLossError(absl::StrCat(path, ": not a safetensors file: ", what...));
  };
  TITAN_ASSIGN_OR_RETURN(const hf_config::WeightsHeader read, hf_config::read_weights_header(file, path));
  const int64_t data = read.bytes;
  std::map<std::string, TensorEntry> entries;
  for (const auto& [key, value] : read.tensors.items()) {
    if (key == "__metadata__") continue;
    try {
      if (!whole_numbers(value.at("shape")) || !whole_numbers(value.at("data_offsets"))) {
        return bad("tensor ", key, ": shape or data_offsets has a number that is not an integer");
      }
      TensorEntry entry{.key = key, .shape = value.at("shape").get<std::vector<int64_t>>()};
      const auto dtype = scalar_type(value.at("dtype").get<std::string>());
      if (!dtype.ok()) return bad("tensor ", key, ": ", dtype.status().message());
      entry.dtype = *dtype;
      const int64_t begin = value.at("data_offsets").at(0), end = value.at("data_offsets").at(1);
      const int64_t bytes = entry.bytes();
      if (bytes < 0 || begin < 0 || end < begin || end - begin != bytes) {
        return bad("tensor ", key, " claims bytes ", begin, " to ", end, ", its shape needs ", bytes);
      }
      if (end > file.size() - data) {
        return bad("tensor ", key, " ends at byte ", data + end, " of ", file.size(), ": the file is cut short");
      }
      entry.begin = data + begin;
      entries.emplace(key, std::move(entry));
    } catch (const nlohmann::json::exception& error) {
      return bad("tensor ", key, ": ", error.what());
    }
  }
  return entries;
}

}  // namespace titan::checkpoint
