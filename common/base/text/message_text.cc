#include "common/base/text/message_text.h"

#include "absl/strings/ascii.h"

namespace titan::text {
namespace {

constexpr size_t kMaxShownLength = 200;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string printable_name(const std::string& name) {
  std::string out = name.substr(0, kMaxShownLength);
  for (char& c : out) c = is_control(c) || static_cast<unsigned char>(c) >= 0x80 ? '?' : c;
  return name.size() > kMaxShownLength ? out + "..." : out;
}

namespace {

constexpr size_t kMost = 200;

}  // namespace

std::string shape_of(std::string_view text) {
  std::string shape;
  for (const char c : text) {
    if (shape.size() == kMost) break;
    const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(c));
    if (digit && !shape.empty() && shape.back() == '#') continue;
    shape.push_back(digit ? '#' : c);
  }
  return shape;
}

}  // namespace titan::text
