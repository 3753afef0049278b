#include "controller/api/request_check.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/error.h"
#include "google/protobuf/descriptor.h"

namespace titan::api {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMostTold = 20;

std::string values_of(const EnumDescriptor& type) {
  std::vector<std::string> values;
  for (int i = 0; i < type.value_count(); ++i)
    values.push_back(absl::StrCat(type.value(i)->name(), " = ", type.value(i)->number()));
  return absl::StrJoin(values, ", ");
}

class EnumCheck {
 public:
  void look(const Message& message, const std::string& prefix) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->is_repeated()) {
        const int count = reflection.FieldSize(message, field);
        for (int i = 0; i < count; ++i) look_at(message, *field, i, absl::StrCat(prefix, field->name(), "[", i, "]"));
      } else {
        look_at(message, *field, -1, absl::StrCat(prefix, field->name()));
      }
    }
  }

  std::vector<rpc::FieldViolation> take() && { return std::move(violations_); }

 private:
  // `index`: of a repeated field, else -1.
  void look_at(const Message& message, const FieldDescriptor& field, int index, const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      look(index < 0 ? reflection.GetMessage(message, &field) : reflection.GetRepeatedMessage(message, &field, index),
           path + ".");
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const int value = index < 0 ? reflection.GetEnumValue(message, &field)
                                  : reflection.GetRepeatedEnumValue(message, &field, index);
      if (field.enum_type()->FindValueByNumber(value) != nullptr || violations_.size() == kMostTold) return;
      violations_.push_back(
          {path, absl::StrCat("is ", value, ", which is not a value of ", field.enum_type()->full_name(), " (",
                              values_of(*field.enum_type()), ")")});
    }
  }

  std::vector<rpc::FieldViolation> violations_;
};

}  // namespace

absl::Status check_enums(const Message& request) {
  EnumCheck check;
  check.look(request, "");
  const std::vector<rpc::FieldViolation> violations = std::move(check).take();
  return violations.empty() ? absl::OkStatus() : rpc::bad_request("ENUM_VALUE_UNKNOWN", violations);
}

absl::Status undecodable_request(absl::string_view type) {
  return rpc::error(absl::StatusCode::kInvalidArgument, "REQUEST_UNDECODABLE",
                    absl::StrCat("the request cannot be decoded as ", type,
                                 ": it is cut off, of another type, or has a string that is not UTF-8"));
}

absl::Status missing_request(absl::string_view type) {
  return rpc::error(absl::StatusCode::kInvalidArgument, "REQUEST_MISSING",
                    absl::StrCat("the call ended without its request, a ", type));
}

}  // namespace titan::api
