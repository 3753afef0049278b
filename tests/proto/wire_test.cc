// Workers, clients and stores of other versions read what this one writes: no field, value or call since 0.1 may
// change its number or type. wire.txt holds all of them; TITAN_WIRE=FILE writes the present ones, to be added to
// it.

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "titan/store/log.pb.h"
#include "titan/v1/auth.pb.h"
#include "titan/v1/cluster.pb.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/node.pb.h"
#include "titan/v1/worker.pb.h"

namespace titan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

using Lines = std::set<std::string>;

std::string type_of(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.message_type() != nullptr) type = field.message_type()->full_name();
  if (field.enum_type() != nullptr) type = field.enum_type()->full_name();
  return absl::StrCat(field.is_map() ? "map" : field.is_repeated() ? "repeated" : "one", " ", type);
}

void list(const EnumDescriptor& values, Lines& lines) {
  for (int i = 0; i < values.value_count(); ++i) {
    lines.insert(absl::StrCat(values.full_name(), " ", values.value(i)->number(), " = ", values.value(i)->name()));
  }
}

void list(const Descriptor& message, Lines& lines) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    lines.insert(absl::StrCat(message.full_name(), " ", field.number(), " = ", field.name(), ": ", type_of(field)));
  }
  for (int i = 0; i < message.reserved_range_count(); ++i) {
    const Descriptor::ReservedRange& range = *message.reserved_range(i);
    for (int number = range.start; number < range.end; ++number) {
      lines.insert(absl::StrCat(message.full_name(), " ", number, " is reserved"));
    }
  }
  for (int i = 0; i < message.nested_type_count(); ++i) list(*message.nested_type(i), lines);
  for (int i = 0; i < message.enum_type_count(); ++i) list(*message.enum_type(i), lines);
}

std::string stream_or(const Descriptor& message, bool streams) {
  return absl::StrCat(streams ? "stream " : "", message.full_name());
}

void list(const ServiceDescriptor& service, Lines& lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& call = *service.method(i);
    lines.insert(absl::StrCat(call.full_name(), "(", stream_or(*call.input_type(), call.client_streaming()),
                              "): ", stream_or(*call.output_type(), call.server_streaming())));
  }
}

Lines present() {
  Lines lines;
  for (const FileDescriptor* file : {v1::Token::descriptor()->file(), v1::GetClusterRequest::descriptor()->file(),
                                     v1::Job::descriptor()->file(), v1::Node::descriptor()->file(),
                                     v1::Register::descriptor()->file(), store::v1::LogEntry::descriptor()->file()}) {
    for (int i = 0; i < file->message_type_count(); ++i) list(*file->message_type(i), lines);
    for (int i = 0; i < file->enum_type_count(); ++i) list(*file->enum_type(i), lines);
    for (int i = 0; i < file->service_count(); ++i) list(*file->service(i), lines);
  }
  return lines;
}

TEST(WireTest, WireFormatIsUnchanged) {
  const Lines lines = present();
  if (const char* path = getenv("TITAN_WIRE")) {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
  }
  std::ifstream file(TITAN_WIRE_FILE);
  Lines recorded;
  for (std::string line; std::getline(file, line);) recorded.insert(line);
  EXPECT_GT(recorded.size(), 300u);
  for (const std::string& line : recorded) EXPECT_EQ(lines.count(line), 1u) << "was there: " << line;
  for (const std::string& line : lines) EXPECT_EQ(recorded.count(line), 1u) << "is new, and not recorded: " << line;
}

}  // namespace
}  // namespace titan
