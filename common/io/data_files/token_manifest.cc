#include "common/io/data_files/token_manifest.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::data_files {
namespace {

constexpr int64_t kMost = int64_t{1} << 48;

// Lists the fields once, for reading and writing.
template <typename Shard, typename Visitor>
void visit_numbers(Shard& shard, Visitor&& visit) {
  visit("tokens", shard.tokens);
  visit("documents", shard.documents);
  visit("malformed", shard.malformed);
  visit("index_crc32c", shard.index_sum);
}

template <typename Mark, typename Visitor>
void visit_mark(Mark& mark, Visitor&& visit) {
  visit("crc32c", mark.sum);
  visit("bos", mark.bos);
  visit("eos", mark.eos);
  visit("max_id", mark.max_id);
}

absl::Status damaged_manifest(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why, "; make the index again with titan-data tokenize"));
}

// Returns a visitor that reads numbers from an object. Sets `missing` to the key of one that is absent or invalid.
auto number_reader(const nlohmann::json& json, int64_t least, std::string& missing) {
  return [&json, least, &missing](const char* key, auto& value) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return void(missing = key);
    const auto number = found->template get<int64_t>();
    if (number < least || number > kMost) return void(missing = key);
    value = static_cast<std::remove_reference_t<decltype(value)>>(number);
  };
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::StatusOr<std::optional<bool>> train_on_all(const nlohmann::json& json, const std::string& path) {
  const auto found = json.find("train_on");
  if (found == json.end()) return std::nullopt;
  for (const bool all : {false, true}) {
    if (*found == train_on_name(all)) return all;
  }
  return damaged_manifest(path, "\"train_on\" is neither assistant nor all");
}

std::string sum_of(const nlohmann::json& json) {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return absl::StrFormat("%08x", storage::crc32c(text.data(), text.size()));
}

}  // namespace

const char* train_on_name(bool all) { return all ? "all" : "assistant"; }

nlohmann::json to_json(const TokenManifest::Shard& shard) {
  nlohmann::json json = {{"name", shard.name}};
  visit_numbers(shard, [&](const char* key, int64_t value) { json[key] = value; });
  return json;
}

absl::StatusOr<TokenManifest::Shard> shard_from_json(const nlohmann::json& json, const std::string& path) {
  TokenManifest::Shard shard;
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) {
    return damaged_manifest(path, "a shard has no \"name\"");
  }
  shard.name = json["name"];
  if (!is_plain_name(shard.name)) return damaged_manifest(path, "a shard's \"name\" is not a file name");
  std::string missing;
  visit_numbers(shard, number_reader(json, 0, missing));
  if (!missing.empty())
    return damaged_manifest(path, absl::StrCat("shard ", shard.name, ": \"", missing, "\" is not a count"));
  return shard;
}

std::string manifest_text(const TokenManifest& manifest) {
  nlohmann::json json = {
      {"format", "titan-tokens"}, {"version", manifest.marked ? 2 : 1}, {"shards", nlohmann::json::array()}};
  visit_mark(manifest.tokenizer, [&](const char* key, int64_t value) { json["tokenizer"][key] = value; });
  if (manifest.train_on_all.has_value()) json["train_on"] = train_on_name(*manifest.train_on_all);
  for (const TokenManifest::Shard& shard : manifest.shards) json["shards"].push_back(to_json(shard));
  json["crc32c"] = sum_of(json);
  return json.dump(1) + "\n";
}

absl::StatusOr<TokenManifest> read_manifest(storage::Files& files, const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", nlohmann::json()) != "titan-tokens") {
    return damaged_manifest(path, "is not a manifest of a token index");
  }
  const nlohmann::json sum = json.value("crc32c", nlohmann::json());
  json.erase("crc32c");
  if (sum != sum_of(json))
    return damaged_manifest(path, "does not match its checksum");  // Also catches a damaged version number.
  const nlohmann::json version = json.value("version", nlohmann::json());
  if (version != 1 && version != 2) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": this Titan reads versions 1 and 2 of the format"));
  }
  TokenManifest manifest{.marked = version == 2};
  std::string missing;
  const nlohmann::json mark = json.value("tokenizer", nlohmann::json());
  visit_mark(manifest.tokenizer, number_reader(mark, -1, missing));
  if (!missing.empty()) return damaged_manifest(path, absl::StrCat("tokenizer: \"", missing, "\" is not a number"));
  TITAN_ASSIGN_OR_RETURN(manifest.train_on_all, train_on_all(json, path));
  for (const nlohmann::json& entry : json.value("shards", nlohmann::json::array())) {
    TITAN_ASSIGN_OR_RETURN(TokenManifest::Shard shard, shard_from_json(entry, path));
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

}  // namespace titan::data_files
