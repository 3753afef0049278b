// Reads rows as a job does, for comparison with Python. A line of input is a request, {"files": [..], "format": "..",
// "tokenizer": "..", "row_tokens": 9, "dp_rank": 0, "dp_size": 1, "batch": 1, "batches": 10, "per_rank": false, "loop":
// true, "cursor": null}, or {"dataset": "..", "path": "..", "records": "FOLDER", ..} as a job names its data, or
// {"sources": [{"name": "..", "path": "..", "format": "..", "repeat": true}], "weights": [[0, [7, 3]]], ..}; a line of
// output has the rank's rows of these batches, the cursor after them, and the error.
#include <iostream>
#include <map>
#include <memory>

#include "common/io/data_files/datasets.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/stream_state.h"

namespace {

using namespace titan::data;

// Reads this rank's rows of a batch and skips those of other ranks.
absl::StatusOr<bool> read_batch(MixedRows& rows, const nlohmann::json& request, nlohmann::json& out) {
  const int64_t batch = request.value("batch", 1);
  const bool per_rank = request.value("per_rank", false);
  const int64_t rank = per_rank ? 0 : request.value("dp_rank", 0), size = per_rank ? 1 : request.value("dp_size", 1);
  auto skipped = rows.skip(rank * batch);
  if (!skipped.ok()) return skipped.status();
  if (*skipped < rank * batch) return false;
  for (int64_t row = 0; row < batch; ++row) {
    const auto tokens = rows.next();
    if (!tokens.ok()) return tokens.status();
    if (*tokens == nullptr) return false;
    out["rows"].push_back(std::vector<int32_t>(*tokens, *tokens + request.at("row_tokens").get<int64_t>()));
    if (const auto ends = rows.piece_ends(); !ends.empty()) {
      out["ends"].push_back(std::vector<int64_t>(ends.begin(), ends.end()));
    }
  }
  skipped = rows.skip((size - rank - 1) * batch);
  if (!skipped.ok()) return skipped.status();
  return *skipped == (size - rank - 1) * batch;
}

absl::StatusOr<ConfiguredFiles> files_of(const nlohmann::json& request) {
  if (request.contains("dataset")) {
    titan::config::DataLoaderSection settings;
    settings.format = request.value("format", "auto");
    settings.messages_key = request.value("messages_key", "");
    settings.train_on = request.value("train_on", "assistant");
    return configured_files(request["dataset"], request.at("path").get<std::string>(), settings,
                            request.value("records", ""));
  }
  auto found = titan::data_files::find_dataset_files(
      request.at("path"), titan::data_files::format_from_name(request.at("format").get<std::string>()).value());
  if (!found.ok()) return found.status();
  return ConfiguredFiles{found->files,
                         {.format = found->format,
                          .messages_key = request.value("messages_key", ""),
                          .train_on_all = request.value("train_on", "assistant") == "all",
                          .blank_lines = request.value("blank_lines", false)}};
}

absl::StatusOr<std::vector<SourceWanted>> sources_of(const nlohmann::json& request) {
  std::vector<SourceWanted> sources;
  if (!request.contains("sources")) {
    auto found = files_of(request);
    if (!found.ok()) return found.status();
    sources.push_back({"", std::move(found->files), std::move(found->kind)});
    return sources;
  }
  for (const nlohmann::json& source : request["sources"]) {
    auto found = files_of(source);
    if (!found.ok()) return found.status();
    sources.push_back(
        {source.at("name"), std::move(found->files), std::move(found->kind), source.value("repeat", true)});
  }
  return sources;
}

std::vector<WeightsFrom> weights_of(const nlohmann::json& request) {
  std::vector<WeightsFrom> weights;
  for (const nlohmann::json& change : request.value("weights", nlohmann::json::array())) {
    weights.push_back({change.at(0), change.at(1).get<std::vector<int64_t>>()});
  }
  return weights;
}

// Cached: requests name few tokenizers many times.
absl::StatusOr<std::shared_ptr<Tokenizer>> tokenizer_of(const std::string& folder) {
  static std::map<std::string, std::shared_ptr<Tokenizer>> loaded;
  std::shared_ptr<Tokenizer>& cached = loaded[folder];
  if (cached == nullptr) {
    auto tokenizer = Tokenizer::load(folder);
    if (!tokenizer.ok()) return tokenizer.status();
    cached = *std::move(tokenizer);
  }
  return cached;
}

absl::Status answer(const nlohmann::json& request, nlohmann::json& result) {
  auto tokenizer = tokenizer_of(request.at("tokenizer"));
  if (!tokenizer.ok()) return tokenizer.status();
  const auto sources = sources_of(request);
  if (!sources.ok()) return sources.status();
  const RowsWanted common{.tokenizer_folder = request.at("tokenizer"),
                          .row_tokens = request.at("row_tokens"),
                          .loop = request.value("loop", true),
                          .max_bad_lines = request.value("bad_lines", 100),
                          .per_rank = request.value("per_rank", false),
                          .dp_rank = request.value("dp_rank", 0),
                          .dp_size = request.value("dp_size", 1),
                          .shuffle = shuffle_from_name(request.value("shuffle", "none")).value(),
                          .shuffle_seed = request.value("seed", 0),
                          .packing_window = request.value("window", 0),
                          .counts_folder = request.value("counts", ""),
                          .timeout = absl::ZeroDuration()};  // Ranks run one after the other.
  auto opened = open_mixed_rows(common, *sources, weights_of(request), *std::move(tokenizer));
  if (!opened.ok()) return opened.status();
  MixedRows& rows = *opened;
  if (request.contains("cursor") && !request["cursor"].is_null()) {
    const auto cursor = mix_from_json(request["cursor"], rows);
    if (!cursor.ok()) return cursor.status();
    if (absl::Status sought = rows.seek(*cursor); !sought.ok()) return sought;
  }
  for (int64_t i = 0; i < request.value("batches", 1); ++i) {
    const auto more = read_batch(rows, request, result);
    if (!more.ok()) return more.status();
    if (!*more) break;
  }
  const auto cursor = rows.cursor();
  if (!cursor.ok()) return cursor.status();
  result["cursor"] = to_json(**cursor, rows);
  result["warnings"] = rows.take_warnings();
  return absl::OkStatus();
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json result = {{"rows", nlohmann::json::array()}};
    const absl::Status status = answer(nlohmann::json::parse(line), result);
    if (!status.ok()) result["error"] = std::string(status.message());
    std::cout << result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
}
