#include "tests/fuzz/fill.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "common/base/text/utf8.h"

namespace titan::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kMaxFields = 64;  // Limit for one message; repeated fields count each time.
constexpr int kMaxDepth = 6;

// Numbers at the ends of ranges.
constexpr int64_t kEdges[] = {0,
                              1,
                              2,
                              3,
                              -1,
                              4,
                              100,
                              1000,
                              INT32_MAX,
                              INT32_MIN,
                              INT64_MAX,
                              INT64_MIN,
                              int64_t{1} << 40,
                              1'700'000'000'000'000'000,
                              int64_t{INT32_MAX} + 1,
                              -1000};
constexpr double kOddNumbers[] = {0, 1, -1, 0.5, 1e300, -1e300, 1e-300, HUGE_VAL, -HUGE_VAL, NAN};

class Filler {
 public:
  Filler(Parts& bytes, const std::vector<std::string>& words) : bytes_(bytes), words_(words) {}

  void fill(Message& message, int depth) {
    const auto& type = *message.GetDescriptor();
    if (type.field_count() == 0) return;
    for (int i = 0; i < kMaxFields && !bytes_.empty(); ++i) {
      const int choice = bytes_.byte() % (type.field_count() + 1);
      if (choice == type.field_count()) return;
      set(message, *type.field(choice), depth);
    }
  }

 private:
  int64_t number() {
    const uint8_t kind = bytes_.byte();
    if (kind < 128) return kEdges[kind % std::size(kEdges)];
    if (kind < 240) return bytes_.byte();
    return static_cast<int64_t>(bytes_.number(8));
  }
  double odd_number() {
    const uint8_t kind = bytes_.byte();
    return kind < 128 ? kOddNumbers[kind % std::size(kOddNumbers)] : static_cast<double>(number()) / 16;
  }
  std::string text() {
    const uint8_t kind = bytes_.byte();
    if (kind < 192 && !words_.empty()) return words_[kind % words_.size()];
    const size_t size = kind == 255 ? bytes_.number(2) : kind % 32;
    return text::valid_utf8(std::string(bytes_.take(size)));
  }

  void set(Message& message, const FieldDescriptor& field, int depth) {
    const auto& reflection = *message.GetReflection();
    const bool many = field.is_repeated();
    switch (field.cpp_type()) {
#define TITAN_SET(Kind, Method, value)  \
  case FieldDescriptor::CPPTYPE_##Kind: \
    return many ? reflection.Add##Method(&message, &field, value) : reflection.Set##Method(&message, &field, value);
      TITAN_SET(INT32, Int32, static_cast<int32_t>(number()))
      TITAN_SET(INT64, Int64, number())
      TITAN_SET(UINT32, UInt32, static_cast<uint32_t>(number()))
      TITAN_SET(UINT64, UInt64, static_cast<uint64_t>(number()))
      TITAN_SET(DOUBLE, Double, odd_number())
      TITAN_SET(FLOAT, Float, static_cast<float>(bytes_.byte()))
      TITAN_SET(BOOL, Bool, (bytes_.byte() & 1) != 0)
      TITAN_SET(ENUM, EnumValue, bytes_.byte() % (field.enum_type()->value_count() + 1))
      TITAN_SET(STRING, String, text())
#undef TITAN_SET
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth == kMaxDepth) return;
        return fill(many ? *reflection.AddMessage(&message, &field) : *reflection.MutableMessage(&message, &field),
                    depth + 1);
    }
  }

  Parts& bytes_;
  const std::vector<std::string>& words_;
};

}  // namespace

void fill(Message& message, Parts& bytes, const std::vector<std::string>& words) {
  Filler(bytes, words).fill(message, 0);
}

}  // namespace titan::fuzz
