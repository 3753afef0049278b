#include "controller/api/request_check.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/service/rpc/error.h"
#include "google/protobuf/descriptor.h"

namespace titan::api {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxReported = 20;

std::string values_of(const EnumDescriptor& type) {
  std::vector<std::string> values;
  for (int i = 0; i < type.value_count(); ++i)
    values.push_back(absl::StrCat(type.value(i)->name(), " = ", type.value(i)->number()));
  return absl::StrJoin(values, ", ");
}

// Integers of a request must be 0 or more, and a violation has this reason, except for these:
constexpr char kOutOfRange[] = "FIELD_OUT_OF_RANGE";
struct Range {
  absl::string_view field;
  int64_t least = 0;
  absl::string_view reason = kOutOfRange;
};
constexpr Range kRanges[] = {
    {"titan.v1.ListJobsRequest.page_size", 0, "BAD_PAGE_SIZE"},
    {"titan.v1.ListNodesRequest.page_size", 0, "BAD_PAGE_SIZE"},
    {"titan.v1.ProfileJobRequest.ranks", 0, "RANK_NOT_FOUND"},
    {"titan.v1.ProfileJobRequest.steps", 0, "BAD_STEPS"},
    {"titan.v1.TailLogsRequest.ranks", 0, "RANK_NOT_FOUND"},
    {"titan.v1.TailLogsRequest.tail_lines", -1},  // -1 reads from the start.
};

Range range_of(const FieldDescriptor& field) {
  for (const Range& range : kRanges) {
    if (range.field == field.full_name()) return range;
  }
  return {field.full_name()};
}

std::optional<int64_t> integer_in(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    return index < 0 ? reflection.GetInt32(message, &field) : reflection.GetRepeatedInt32(message, &field, index);
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    return index < 0 ? reflection.GetInt64(message, &field) : reflection.GetRepeatedInt64(message, &field, index);
  }
  return std::nullopt;
}

// Returns whether the text consists of 8-4-4-4-12 hexadecimal digits.
bool is_uuid(absl::string_view text) {
  if (text.size() != 36) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (is_dash ? text[i] != '-' : !absl::ascii_isxdigit(static_cast<unsigned char>(text[i]))) return false;
  }
  return true;
}

class RequestCheck {
 public:
  // `is_request` is false for a nested message, whose numbers are checked where they are used.
  void look(const Message& message, const std::string& prefix, bool is_request) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->is_repeated()) {
        const int count = reflection.FieldSize(message, field);
        for (int i = 0; i < count; ++i)
          look_at(message, *field, i, absl::StrCat(prefix, field->name(), "[", i, "]"), is_request);
      } else {
        look_at(message, *field, -1, absl::StrCat(prefix, field->name()), is_request);
      }
    }
  }

  absl::Status status() const {
    return violations_.empty() ? absl::OkStatus() : rpc::bad_request(reason_, violations_);
  }

 private:
  // `index`: element of a repeated field, else -1.
  void look_at(const Message& message, const FieldDescriptor& field, int index, const std::string& path,
               bool is_request) {
    const Reflection& reflection = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      look(index < 0 ? reflection.GetMessage(message, &field) : reflection.GetRepeatedMessage(message, &field, index),
           path + ".", /*is_request=*/false);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const int value = index < 0 ? reflection.GetEnumValue(message, &field)
                                  : reflection.GetRepeatedEnumValue(message, &field, index);
      if (field.enum_type()->FindValueByNumber(value) != nullptr) return;
      add("ENUM_VALUE_UNKNOWN", path,
          absl::StrCat("is ", value, ", which is not a value of ", field.enum_type()->full_name(), " (",
                       values_of(*field.enum_type()), ")"));
    } else if (is_request) {
      look_at_value(message, field, index, path);
    }
  }

  void look_at_value(const Message& message, const FieldDescriptor& field, int index, const std::string& path) {
    if (const std::optional<int64_t> value = integer_in(message, field, index)) {
      const Range range = range_of(field);
      if (*value < range.least)
        add(range.reason, path, absl::StrCat("is ", *value, ", expected at least ", range.least));
    } else if (field.name() == "request_id" && !is_uuid(message.GetReflection()->GetString(message, &field))) {
      add("REQUEST_ID_INVALID", path, "is not a UUID (8-4-4-4-12 hexadecimal digits)");
    }
  }

  // Adds a violation unless its reason differs from the first one's: an error has one reason.
  void add(absl::string_view reason, const std::string& path, std::string description) {
    if (violations_.empty()) reason_ = std::string(reason);
    if (reason_ == reason && violations_.size() < kMaxReported) violations_.push_back({path, std::move(description)});
  }

  std::string reason_;
  std::vector<rpc::FieldViolation> violations_;
};

}  // namespace

absl::Status check_fields(const Message& request) {
  RequestCheck check;
  check.look(request, "", /*is_request=*/true);
  return check.status();
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
