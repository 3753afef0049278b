#include "worker/rank/data/samples/interleaved.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"

namespace titan::data {
namespace {

using nlohmann::ordered_json;

bool is_address(const ordered_json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return absl::StartsWith(text, "http://") || absl::StartsWith(text, "https://");
}

std::string problem_of(const ordered_json& image, const ordered_json& text) {
  if (image.is_null() == text.is_null()) return image.is_null() ? "neither an image nor a text" : "an image and a text";
  if (is_address(image)) return "the address of an image, which has to be downloaded before the training";
  if (!text.is_null() && !text.is_string()) return "a text that is not a string";
  if (text.is_string() && !text::is_utf8(text.get_ref<const std::string&>())) return "a text that is not UTF-8";
  return "";
}

}  // namespace

void add_interleaved(const ordered_json& row, FindImage find, Sample& sample) {
  const auto images = row.find("images"), texts = row.find("texts");
  if (images == row.end() || texts == row.end() || !images->is_array() || !texts->is_array()) {
    sample.problem = "no lists \"images\" and \"texts\"";
    return;
  }
  if (images->size() != texts->size() || images->empty()) {
    sample.problem = absl::StrCat("its lists \"images\" and \"texts\" have ", images->size(), " and ", texts->size(),
                                  " values, where the same number of 1 or more is needed");
    return;
  }
  std::vector<SamplePart> parts;
  for (size_t i = 0; i < images->size(); ++i) {
    const ordered_json &image = (*images)[i], &text = (*texts)[i];
    std::string problem = problem_of(image, text);
    std::optional<std::string> bytes;
    if (problem.empty() && !image.is_null()) bytes = find(image, problem);
    if (!problem.empty()) {
      sample.problem = absl::StrCat("place ", i, " of its lists: ", problem);
      return;
    }
    if (bytes.has_value()) {
      parts.push_back({SamplePart::Kind::kImage, *std::move(bytes)});
    } else {
      parts.push_back({SamplePart::Kind::kText, text.get<std::string>()});
    }
  }
  sample.parts = std::move(parts);
}

}  // namespace titan::data
