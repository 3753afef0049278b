#include "controller/cli/message_json.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/text/nearest.h"
#include "controller/cli/client.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"

namespace titan::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json message_json(const Message& message) {
  if (message.GetDescriptor() != google::protobuf::Timestamp::descriptor()) return to_json(message);
  return google::protobuf::util::TimeUtil::ToString(static_cast<const google::protobuf::Timestamp&>(message));
}

ordered_json single(const Message& message, const FieldDescriptor& field) {
  const Reflection& get = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return get.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return get.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return get.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return get.HasField(message, &field) ? message_json(get.GetMessage(message, &field)) : ordered_json(nullptr);
  }
  return nullptr;
}

ordered_json repeated(const Message& message, const FieldDescriptor& field) {
  const Reflection& get = *message.GetReflection();
  const int size = get.FieldSize(message, &field);
  ordered_json out = field.is_map() ? ordered_json::object() : ordered_json::array();
  for (int i = 0; i < size; ++i) {
    if (field.is_map()) {
      const Message& entry = get.GetRepeatedMessage(message, &field, i);
      const google::protobuf::Descriptor& type = *entry.GetDescriptor();
      out[entry.GetReflection()->GetString(entry, type.FindFieldByNumber(1))] =
          single(entry, *type.FindFieldByNumber(2));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      out.push_back(message_json(get.GetRepeatedMessage(message, &field, i)));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      out.push_back(get.GetRepeatedString(message, &field, i));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      out.push_back(get.GetRepeatedInt32(message, &field, i));
    }
  }
  return out;
}

}  // namespace

ordered_json to_json(const Message& message) {
  ordered_json out = ordered_json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    out[field.name()] = field.is_repeated() ? repeated(message, field) : single(message, field);
  }
  return out;
}

nlohmann::ordered_json job_json(const v1::Job& job) {
  nlohmann::ordered_json out = {{"id", short_name(job.name())}};
  out.update(to_json(job));
  if (!out["spec"].is_object()) return out;
  nlohmann::ordered_json& spec = out["spec"];
  spec.erase("config_json");
  if (job.spec().config_json().empty()) return out;  // Most answers leave it out.
  spec["config"] = nlohmann::ordered_json::parse(job.spec().config_json(), nullptr, /*allow_exceptions=*/false);
  if (spec["config"].is_discarded()) spec["config"] = job.spec().config_json();
  return out;
}

absl::StatusOr<v1::Job::State> parse_state(const std::string& text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  std::vector<std::string> names;
  for (int i = v1::Job::QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    names.push_back(v1::Job::State_Name(static_cast<v1::Job::State>(i)));
    if (names.back() == upper) return static_cast<v1::Job::State>(i);
  }
  return absl::InvalidArgumentError("'" + text + "' is not a job state" + did_you_mean(upper, names));
}

}  // namespace titan::cli
