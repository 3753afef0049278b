// Reads samples as a job does, for comparison with Python packages. A line of input is a request, {"files": [..],
// "format": "..", "interleaved": false, "order": [..], "image_key": "..", "caption_key": ".."}, or {"dataset": "..",
// "path": "..", "records": "FOLDER"} as a job names samples on a hub; a line of output has the samples, by default in
// order, with their bytes in hexadecimal digits, the warnings, and the error that ended the reading.
#include <iostream>
#include <numeric>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/samples/hub/hub_samples.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/data/samples/sample_set.h"

namespace {

using titan::data::Sample;
using titan::data::SamplePart;
using titan::data::SampleSet;

nlohmann::json described(const Sample& sample) {
  nlohmann::json parts = nlohmann::json::array();
  for (const SamplePart& part : sample.parts) {
    parts.push_back({part.kind == SamplePart::Kind::kImage ? "image" : "text", absl::BytesToHexString(part.bytes)});
  }
  return {{"key", sample.key}, {"problem", sample.problem}, {"parts", std::move(parts)}, {"fields", sample.fields}};
}

absl::StatusOr<SampleSet::Options> options_of(const nlohmann::json& request) {
  const std::string records = request.value("records", "");
  if (request.contains("dataset")) {
    auto found =
        titan::data::samples_on_hub(request["dataset"], request.at("path"), titan::data::SampleFormat::kAuto, records);
    if (!found.ok()) return found.status();
    return SampleSet::Options{.files = found->files, .kind = found->kind, .index_folder = records};
  }
  SampleSet::Options options{.files = request.at("files")};
  options.kind.format = *titan::data::sample_format_from_name(request.value("format", "webdataset"));
  if (request.value("interleaved", false)) options.kind.layout = titan::data::SampleLayout::kInterleaved;
  options.kind.image_key = request.value("image_key", "");
  options.kind.caption_key = request.value("caption_key", "");
  return options;
}

nlohmann::json answer(const nlohmann::json& request) {
  const auto options = options_of(request);
  if (!options.ok()) return {{"error", std::string(options.status().message())}};
  const auto set = SampleSet::open(*options);
  if (!set.ok()) return {{"error", std::string(set.status().message())}};
  std::vector<int64_t> order = request.value("order", std::vector<int64_t>());
  if (!request.contains("order")) {
    order.resize(static_cast<size_t>((*set)->samples()));
    std::iota(order.begin(), order.end(), 0);
  }
  nlohmann::json result{{"samples", nlohmann::json::array()}};
  for (const int64_t number : order) {
    const auto sample = (*set)->read(number);
    if (!sample.ok()) {
      result["error"] = std::string(sample.status().message());
      break;
    }
    result["samples"].push_back(described(*sample));
  }
  result["warnings"] = (*set)->take_warnings();
  return result;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(nlohmann::json::parse(line)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
  }
}
