#include "common/base/text/shown.h"

namespace titan::text {
namespace {

constexpr size_t kLongestShown = 200;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string shown(const std::string& name) {
  std::string out = name.substr(0, kLongestShown);
  for (char& c : out) c = is_control(c) || static_cast<unsigned char>(c) >= 0x80 ? '?' : c;
  return name.size() > kLongestShown ? out + "..." : out;
}

}  // namespace titan::text
