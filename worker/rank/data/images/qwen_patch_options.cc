#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/qwen_patches.h"

namespace titan::images {
namespace {

using nlohmann::json;

constexpr int64_t kLargestSide = 4096, kLargestArea = int64_t{1} << 40;
constexpr int kBicubic = 3;  // Pillow's number of the filter.
constexpr size_t kMaxShownValueLength = 80;

// Reads the keys of one file. The first that cannot be read sets the status.
class OptionReader {
 public:
  OptionReader(const json& config, std::string path) : config_(config), path_(std::move(path)) {}

  void refuse(const std::string& key, const std::string& expected) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", key, " is ", at(key).dump().substr(0, kMaxShownValueLength), "; ", expected, " is supported")));
  }
  // A missing key is null.
  json at(const std::string& key) const { return config_.value(key, json()); }

  template <typename T>
  void take_size(const std::string& key, T& into, int64_t largest) {
    const json value = at(key);
    if (value.is_null()) return;
    if (!value.is_number_integer() || value < 1 || value > largest)
      return refuse(key, absl::StrCat("an integer from 1 to ", largest));
    into = value.get<T>();
  }
  void take_colors(const std::string& key, std::array<double, 3>& into) {
    const json value = at(key);
    if (value.is_null()) return;
    for (size_t c = 0; c < into.size(); ++c) {
      const bool listed = value.is_array() && value.size() == into.size() && value[c].is_number();
      if (!listed && !value.is_number()) return refuse(key, "a number for each of three colours");
      into[c] = listed ? value[c] : value;
    }
  }
  void expect_on(const std::string& key) {
    if (const json value = at(key); !value.is_null() && value != json(true)) refuse(key, "only true");
  }
  const absl::Status& status() const { return status_; }

 private:
  const json& config_;
  const std::string path_;
  absl::Status status_;
};

void take_area(OptionReader& reader, QwenPatchOptions& options) {
  if (const json size = reader.at("size"); !size.is_null()) {
    const auto edge = [&](const char* key, int64_t& into) {
      const json value = size.is_object() ? size.value(key, json()) : json();
      if (!value.is_number_integer() || value < 1 || value > kLargestArea)
        return reader.refuse("size", "a table with the numbers of pixels shortest_edge and longest_edge");
      into = value;
    };
    edge("shortest_edge", options.min_pixels);
    edge("longest_edge", options.max_pixels);
  }
  reader.take_size("min_pixels", options.min_pixels, kLargestArea);
  reader.take_size("max_pixels", options.max_pixels, kLargestArea);
  if (options.min_pixels > options.max_pixels) {
    reader.refuse(reader.at("min_pixels").is_null() ? "size" : "min_pixels",
                  absl::StrCat("at most ", options.max_pixels, " pixels as the smallest area"));
  }
}

}  // namespace

absl::StatusOr<QwenPatchOptions> read_qwen_patch_options(const json& config, const std::string& path) {
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  OptionReader reader(config, path);
  const json type = reader.at("image_processor_type");
  if (!type.is_null() && type != "Qwen2VLImageProcessor" && type != "Qwen2VLImageProcessorFast")
    reader.refuse("image_processor_type", "Qwen2VLImageProcessor or Qwen2VLImageProcessorFast");
  QwenPatchOptions options{.patch_size = 14,
                           .min_pixels = 56 * 56,
                           .max_pixels = 28 * 28 * 1280,
                           .mean = {0.48145466, 0.4578275, 0.40821073},
                           .deviation = {0.26862954, 0.26130258, 0.27577711}};
  reader.take_size("patch_size", options.patch_size, kLargestSide);
  reader.take_size("temporal_patch_size", options.temporal_patch_size, kLargestSide);
  reader.take_size("merge_size", options.merge_size, kLargestSide);
  take_area(reader, options);
  reader.take_colors("image_mean", options.mean);
  reader.take_colors("image_std", options.deviation);
  for (const double deviation : options.deviation) {
    if (!(deviation > 0) || !std::isfinite(deviation)) reader.refuse("image_std", "only numbers above 0");
  }
  if (const json factor = reader.at("rescale_factor"); factor.is_number()) {
    options.rescale_factor = factor;
  } else if (!factor.is_null()) {
    reader.refuse("rescale_factor", "a number");
  }
  for (const char* step : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) reader.expect_on(step);
  if (const json filter = reader.at("resample"); !filter.is_null() && filter != kBicubic)
    reader.refuse("resample", "only 3 (bicubic)");
  if (!reader.status().ok()) return reader.status();
  return options;
}

}  // namespace titan::images
