#include "worker/rank/data/samples/encodings_manifest.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/plan/hf_config/model_match.h"

namespace titan::data {
namespace {

constexpr int64_t kMost = int64_t{1} << 48;
constexpr int64_t kVersion = 1;

// Lists the fields once, for reading and writing.
template <typename Shard, typename Visitor>
void visit_numbers(Shard& shard, Visitor&& visit) {
  visit("samples", shard.samples);
  visit("skipped", shard.skipped);
  visit("bytes", shard.bytes);
  visit("head_bytes", shard.head_bytes);
  visit("head_crc32c", shard.head_sum);
}

template <typename Manifest, typename Visitor>
void visit_sizes(Manifest& manifest, Visitor&& visit) {
  visit("image_size", manifest.image_size);
  visit("latent_channels", manifest.latent_channels);
  visit("latent_side", manifest.latent_side);
  visit("t5_tokens", manifest.t5_tokens);
  visit("t5_width", manifest.t5_width);
  visit("clip_width", manifest.clip_width);
  visit("empty_crc32c", manifest.empty_sum);
}

absl::Status damaged_encodings(const std::string& path, const std::string& why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why, "; make the encodings again with titan-data encode-images"));
}

// Returns a visitor that reads counts from an object. Sets `missing` to the key of one that is absent or invalid.
auto count_reader(const nlohmann::json& json, std::string& missing) {
  return [&json, &missing](const char* key, int64_t& value) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return void(missing = key);
    value = found->get<int64_t>();
    if (value < 0 || value > kMost) missing = key;
  };
}

int64_t element_bytes(const std::string& dtype) { return dtype == "F64" ? 8 : dtype == "F32" ? 4 : 2; }

bool is_known(const std::string& dtype) { return dtype == "F64" || dtype == "F32" || dtype == "BF16"; }

std::string text_of(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string sum_of(const nlohmann::json& json) {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return absl::StrFormat("%08x", storage::crc32c(text.data(), text.size()));
}

// Reads everything but the shards. Returns what is wrong; empty: nothing.
std::string read_description(const nlohmann::json& json, EncodingsManifest& manifest) {
  std::string missing;
  visit_sizes(manifest, count_reader(json, missing));
  if (!missing.empty()) return absl::StrCat("\"", missing, "\" is not a count");
  manifest.dtype = text_of(json, "dtype");
  if (!is_known(manifest.dtype)) return "\"dtype\" is neither F64, F32 nor BF16";
  manifest.crop = text_of(json, "crop");
  for (const auto& [key, value] : {std::pair{"scale", &manifest.scale}, std::pair{"shift", &manifest.shift}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number()) return absl::StrCat("\"", key, "\" is not a number");
    *value = found->get<double>();
  }
  const nlohmann::json encoders = json.value("encoders", nlohmann::json::object());
  for (const auto& [key, value] : encoders.items()) {
    if (!value.is_string()) return absl::StrCat("\"encoders\": \"", key, "\" is not a text");
    manifest.encoders[key] = value.get<std::string>();
  }
  return "";
}

}  // namespace

int64_t EncodingsManifest::samples() const {
  int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.samples;
  return sum;
}

int64_t EncodingsManifest::skipped() const {
  int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.skipped;
  return sum;
}

int64_t EncodingsManifest::latent_bytes() const {
  return 2 * latent_channels * latent_side * latent_side * element_bytes(dtype);
}
int64_t EncodingsManifest::t5_bytes() const { return t5_tokens * t5_width * element_bytes(dtype); }
int64_t EncodingsManifest::clip_bytes() const { return clip_width * element_bytes(dtype); }

const EncodingsManifest::Shard* EncodingsManifest::find(const std::string& path) const {
  const std::string name = std::filesystem::path(path).filename().string();
  const auto found = std::find_if(shards.begin(), shards.end(), [&](const Shard& shard) { return shard.name == name; });
  return found == shards.end() ? nullptr : &*found;
}

nlohmann::json to_json(const EncodingsManifest::Shard& shard) {
  nlohmann::json json = {{"name", shard.name}};
  visit_numbers(shard, [&](const char* key, int64_t value) { json[key] = value; });
  return json;
}

absl::StatusOr<EncodingsManifest::Shard> encoded_shard_from_json(const nlohmann::json& json, const std::string& path) {
  EncodingsManifest::Shard shard;
  if (json.is_object()) shard.name = text_of(json, "name");
  if (shard.name.empty() || shard.name.find('/') != std::string::npos) {
    return damaged_encodings(path, "a shard's \"name\" is not a file name");
  }
  std::string missing;
  visit_numbers(shard, count_reader(json, missing));
  if (missing.empty()) return shard;
  return damaged_encodings(path, absl::StrCat("shard ", shard.name, ": \"", missing, "\" is not a count"));
}

std::string manifest_text(const EncodingsManifest& manifest) {
  nlohmann::json json = {{"format", "titan-encodings"},   {"version", kVersion},
                         {"dtype", manifest.dtype},       {"crop", manifest.crop},
                         {"scale", manifest.scale},       {"shift", manifest.shift},
                         {"encoders", manifest.encoders}, {"shards", nlohmann::json::array()}};
  visit_sizes(manifest, [&](const char* key, int64_t value) { json[key] = value; });
  for (const EncodingsManifest::Shard& shard : manifest.shards) json["shards"].push_back(to_json(shard));
  json["crc32c"] = sum_of(json);
  return json.dump(1) + "\n";
}

absl::StatusOr<EncodingsManifest> read_encodings_manifest(storage::Files& files, const std::string& folder) {
  const std::string path = storage::join_path(folder, kEncodingsManifest);
  const absl::StatusOr<std::string> text = storage::read_file(files, path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat("dataset_path ", folder, ": holds no ", kEncodingsManifest,
                                            ", which titan-data encode-images writes when all is encoded"));
  }
  TITAN_RETURN_IF_ERROR(text.status());
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || text_of(json, "format") != "titan-encodings") {
    return damaged_encodings(path, "is not a manifest of encodings");
  }
  const std::string sum = text_of(json, "crc32c");
  json.erase("crc32c");
  if (sum != sum_of(json)) return damaged_encodings(path, "does not match its checksum");
  if (json.value("version", nlohmann::json()) != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": this Titan reads version ", kVersion, " of the format"));
  }
  EncodingsManifest manifest;
  if (const std::string wrong = read_description(json, manifest); !wrong.empty()) return damaged_encodings(path, wrong);
  for (const nlohmann::json& entry : json.value("shards", nlohmann::json::array())) {
    TITAN_ASSIGN_OR_RETURN(EncodingsManifest::Shard shard, encoded_shard_from_json(entry, path));
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

absl::StatusOr<EmptyEncodings> read_empty_encodings(storage::Files& files, const std::string& folder,
                                                    const EncodingsManifest& manifest) {
  const std::string path = storage::join_path(folder, kEmptyEncodings);
  TITAN_ASSIGN_OR_RETURN(const std::string bytes, storage::read_file(files, path));
  if (storage::crc32c(bytes.data(), bytes.size()) != static_cast<uint32_t>(manifest.empty_sum)) {
    return damaged_encodings(path, "does not match its checksum");
  }
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::ReadableFile> file, files.open(path));
  TITAN_ASSIGN_OR_RETURN(const hf_config::WeightsHeader header, hf_config::read_weights_header(*file, path));
  EmptyEncodings empty;
  for (const auto& [key, out] : {std::pair{kStoredT5, &empty.t5}, std::pair{kStoredClip, &empty.clip}}) {
    const bool is_t5 = out == &empty.t5;
    const auto size = static_cast<size_t>(is_t5 ? manifest.t5_bytes() : manifest.clip_bytes());
    const auto begin =
        static_cast<size_t>(header.bytes + header.tensors.at(key).at("data_offsets").at(0).get<int64_t>());
    if (begin + size > bytes.size()) return damaged_encodings(path, "is shorter than its encodings");
    *out = bytes.substr(begin, size);
  }
  return empty;
}

}  // namespace titan::data
