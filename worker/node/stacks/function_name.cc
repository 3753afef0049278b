#include "worker/node/stacks/function_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/node/stacks/thread_facts.h"

namespace titan::stacks {
namespace {

constexpr size_t kMostCharacters = 120;
constexpr size_t kMostMangled = 8192;
constexpr int kDeepest = 8;

// "operator<", "operator->>" and the like are no brackets.
bool of_an_operator(const std::string& name, size_t at) {
  size_t begin = at;
  while (begin > 0 && (name[begin - 1] == '<' || name[begin - 1] == '>' || name[begin - 1] == '-')) --begin;
  return absl::EndsWith(absl::string_view(name).substr(0, begin), "operator");
}

// What is in brackets more than `depth` deep becomes "...". "()" stays: it tells a call operator.
std::string folded(const std::string& name, int depth) {
  std::string text;
  int inside = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool bracket = (c == '<' || c == '>' || c == '(' || c == ')') && !of_an_operator(name, i);
    const bool opens = bracket && (c == '<' || c == '('), closes = bracket && !opens;
    if (closes) inside = inside > 0 ? inside - 1 : 0;
    if (inside <= depth) text += c;
    if (!opens) continue;
    ++inside;
    if (inside == depth + 1 && i + 1 < name.size() && name[i + 1] != ')') text += "...";
  }
  return text;
}

}  // namespace

std::string function_name(const std::string& symbol) {
  if (!absl::StartsWith(symbol, "_Z") || symbol.size() > kMostMangled) {
    return shortened_name(printable(symbol), kMostCharacters);
  }
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &failed), &std::free);
  return shortened_name(printable(plain == nullptr ? symbol : plain.get()), kMostCharacters);
}

std::string shortened_name(const std::string& name, size_t most) {
  if (name.size() <= most) return name;
  std::string text;
  for (int depth = kDeepest; depth >= 0; --depth) {
    text = folded(name, depth);
    if (text.size() <= most) return text;
  }
  return absl::StrCat(text.substr(0, most - 3), "...");
}

}  // namespace titan::stacks
