#include "common/base/text/shape.h"

#include "absl/strings/ascii.h"

namespace titan::text {
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
