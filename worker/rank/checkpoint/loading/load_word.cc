#include "worker/rank/checkpoint/loading/load_word.h"

#include <algorithm>

#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/steps/verdict.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

// As [[first, how many], ...]: a rank of a pipeline has no place for most tensors, which follow each other.
json runs_of(const std::vector<size_t>& numbers) {
  json runs = json::array();
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back({numbers[i], end - i});
    i = end;
  }
  return runs;
}

std::vector<size_t> numbers_in(const json& runs) {
  std::vector<size_t> numbers;
  for (const json& run : runs) {
    for (size_t i = 0; i < run.at(1).get<size_t>(); ++i) numbers.push_back(run.at(0).get<size_t>() + i);
  }
  return numbers;
}

}  // namespace

std::string to_text(const LoadWord& word) {
  json text = to_json(word.status);
  text["unclaimed"] = runs_of(word.unclaimed);
  return text.dump();
}

LoadWord load_word_in(const std::string& text) {
  const json from = json::parse(text, nullptr, false);
  if (!from.is_object()) return {absl::InternalError("a rank's word on a load cannot be read"), {}};
  return {status_from_json(from), numbers_in(from.value("unclaimed", json::array()))};
}

std::string join_load_words(const std::vector<std::string>& words) {
  LoadWord joined = load_word_in(words.at(0));
  for (size_t i = 1; i < words.size(); ++i) {
    const LoadWord one = load_word_in(words[i]);
    if (!one.status.ok() && (joined.status.ok() || absl::IsFailedPrecondition(one.status))) joined.status = one.status;
    std::erase_if(joined.unclaimed, [&](size_t number) {
      return !std::binary_search(one.unclaimed.begin(), one.unclaimed.end(), number);
    });
  }
  return to_text(joined);
}

}  // namespace titan::checkpoint
