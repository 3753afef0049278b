#pragma once

#include <cstdint>
#include <string_view>

namespace titan::fuzz {

// Cuts bytes into the parts that a target needs: the text up to the next "
// ===
// ", the next byte, or the rest. Past the end it returns an empty text and zero.
class Parts {
 public:
  explicit Parts(std::string_view bytes) : left_(bytes) {}

  std::string_view next() {
    const size_t end = left_.find(kCut);
    const std::string_view part = left_.substr(0, end);
    left_.remove_prefix(end == left_.npos ? left_.size() : end + kCut.size());
    return part;
  }
  uint8_t byte() {
    if (left_.empty()) return 0;
    const auto value = static_cast<uint8_t>(left_[0]);
    left_.remove_prefix(1);
    return value;
  }
  std::string_view take(size_t size) {
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(part.size());
    return part;
  }
  uint64_t number(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte();
    return value;
  }
  std::string_view rest() { return take(left_.size()); }
  bool empty() const { return left_.empty(); }

 private:
  static constexpr std::string_view kCut = "\n===\n";
  std::string_view left_;
};

}  // namespace titan::fuzz
