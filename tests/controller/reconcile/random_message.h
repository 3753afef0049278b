#pragma once

// Makes messages with random values in random fields, like those of nodes of any version.

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace titan::reconcile {

inline constexpr int kRandomRounds = 500;  // Rounds per kind of message.

class RandomMessage {
 public:
  explicit RandomMessage(uint64_t seed) : random_(seed) {}

  int64_t number(int64_t lowest, int64_t highest) {
    return std::uniform_int_distribution<int64_t>(lowest, highest)(random_);
  }
  bool coin() { return number(0, 1) == 1; }
  std::string text() {
    std::string text;
    for (int64_t length = number(0, 12); length > 0; --length) text.push_back(static_cast<char>(number('a', 'z')));
    return text;
  }

  // Sets about two of three fields, also in inner messages. Enumerators are known ones.
  void fill(google::protobuf::Message& message) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *type.field(i);
      if (field.containing_oneof() != nullptr || number(0, 2) == 0) continue;
      const int64_t values = field.is_map() ? 1 : field.is_repeated() ? number(0, 3) : 1;
      for (int64_t value = 0; value < values; ++value) set(message, field);
    }
  }

 private:
  using Field = google::protobuf::FieldDescriptor;

  int64_t any_number() {
    using Limits = std::numeric_limits<int32_t>;
    const int64_t edges[] = {0, 1, -1, Limits::min(), Limits::max()};
    return coin() ? edges[number(0, 4)] : number(Limits::min(), Limits::max());
  }

  void set(google::protobuf::Message& message, const Field& field) {
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    const bool adds = field.is_repeated();
    switch (field.cpp_type()) {
      case Field::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(any_number());
        return adds ? reflection.AddInt32(&message, &field, value) : reflection.SetInt32(&message, &field, value);
      }
      case Field::CPPTYPE_INT64:
        return reflection.SetInt64(&message, &field, any_number() * 1'000'000);
      case Field::CPPTYPE_UINT64:
        return reflection.SetUInt64(&message, &field, static_cast<uint64_t>(any_number()));
      case Field::CPPTYPE_DOUBLE:
        return reflection.SetDouble(&message, &field, static_cast<double>(any_number()) / 8);
      case Field::CPPTYPE_BOOL:
        return reflection.SetBool(&message, &field, coin());
      case Field::CPPTYPE_STRING:
        return reflection.SetString(&message, &field, text());
      case Field::CPPTYPE_ENUM: {
        const google::protobuf::EnumDescriptor& type = *field.enum_type();
        return reflection.SetEnum(&message, &field, type.value(static_cast<int>(number(0, type.value_count() - 1))));
      }
      case Field::CPPTYPE_MESSAGE:
        return field.is_map() ? set_entry(*reflection.AddMessage(&message, &field))
               : adds         ? fill(*reflection.AddMessage(&message, &field))
                              : fill(*reflection.MutableMessage(&message, &field));
      default:
        return;  // titan.v1 has no other types here.
    }
  }

  void set_entry(google::protobuf::Message& entry) {
    set(entry, *entry.GetDescriptor()->map_key());
    set(entry, *entry.GetDescriptor()->map_value());
  }

  std::mt19937_64 random_;
};

}  // namespace titan::reconcile
