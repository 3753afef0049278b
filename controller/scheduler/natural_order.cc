#include "controller/scheduler/natural_order.h"

#include <algorithm>

namespace titan::scheduler {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// A number becomes its digits behind their count, so that shorter numbers come first.
std::string natural_key(std::string_view text) {
  std::string key;
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      key.push_back(text[i++]);
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    while (i + 1 < end && text[i] == '0') ++i;
    key.push_back(static_cast<char>(std::min<size_t>(end - i, 255)));
    key.append(text.substr(i, end - i));
    i = end;
  }
  key.push_back('\0');
  return key.append(text);  // "n1" and "n01" count the same.
}

std::string node_key(std::string_view domain, std::string_view name) {
  return natural_key(domain) + '\0' + natural_key(name);
}

}  // namespace titan::scheduler
