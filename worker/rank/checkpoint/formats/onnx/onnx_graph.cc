#include "worker/rank/checkpoint/formats/onnx/onnx_graph.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <protozero/pbf_writer.hpp>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace titan::checkpoint::onnx {
namespace {

using protozero::pbf_writer;

static_assert(std::endian::native == std::endian::little, "constants are written as they are in memory");

// Numbers of the fields of onnx.proto's messages.
namespace model_proto {
constexpr uint32_t kIrVersion = 1, kProducerName = 2, kProducerVersion = 3, kModelVersion = 5, kGraph = 7,
                   kOpsetImport = 8, kMetadataProps = 14;
}
namespace opset_proto {
constexpr uint32_t kDomain = 1, kVersion = 2;
}
namespace graph_proto {
constexpr uint32_t kNode = 1, kName = 2, kInitializer = 5, kInput = 11, kOutput = 12;
}
namespace node_proto {
constexpr uint32_t kInput = 1, kOutput = 2, kName = 3, kOpType = 4, kAttribute = 5, kDomain = 7;
}
namespace attribute_proto {
constexpr uint32_t kName = 1, kFloat = 2, kInteger = 3, kString = 4, kIntegers = 8, kType = 20;
constexpr int32_t kFloatType = 1, kIntegerType = 2, kStringType = 3, kIntegersType = 7;
}  // namespace attribute_proto
namespace tensor_proto {
constexpr uint32_t kDims = 1, kDataType = 2, kName = 8, kRawData = 9, kExternalData = 13, kDataLocation = 14;
constexpr int32_t kExternal = 1;
}  // namespace tensor_proto
namespace value_proto {
constexpr uint32_t kName = 1, kType = 2;
constexpr uint32_t kTensorType = 1;                  // Field of TypeProto.
constexpr uint32_t kElementType = 1, kShape = 2;     // Fields of TypeProto.Tensor.
constexpr uint32_t kDim = 1;                         // Field of TensorShapeProto.
constexpr uint32_t kDimValue = 1, kDimVariable = 2;  // Fields of TensorShapeProto.Dimension.
}  // namespace value_proto

int64_t ir_version(int64_t opset) { return opset <= 22 ? 10 : opset - 12; }

void put_pair(pbf_writer& to, uint32_t field, const std::string& key, const std::string& value) {
  constexpr uint32_t kKey = 1, kValue = 2;  // Fields of StringStringEntryProto.
  pbf_writer pair(to, field);
  pair.add_string(kKey, key);
  pair.add_string(kValue, value);
}

void put_attribute(pbf_writer& to, const Attribute& attribute) {
  using namespace attribute_proto;
  pbf_writer out(to, node_proto::kAttribute);
  out.add_string(kName, attribute.name);
  if (const auto* integer = std::get_if<int64_t>(&attribute.value)) {
    out.add_int64(kInteger, *integer);
    out.add_enum(kType, kIntegerType);
  } else if (const auto* number = std::get_if<float>(&attribute.value)) {
    out.add_float(kFloat, *number);
    out.add_enum(kType, kFloatType);
  } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
    out.add_bytes(kString, *text);
    out.add_enum(kType, kStringType);
  } else {
    for (const int64_t one : std::get<std::vector<int64_t>>(attribute.value)) out.add_int64(kIntegers, one);
    out.add_enum(kType, kIntegersType);
  }
}

void put_node(pbf_writer& to, const Node& node, const std::string& name) {
  using namespace node_proto;
  pbf_writer out(to, graph_proto::kNode);
  for (const std::string& input : node.inputs) out.add_string(kInput, input);
  for (const std::string& output : node.outputs) out.add_string(kOutput, output);
  out.add_string(kName, name);
  out.add_string(kOpType, node.op);
  for (const Attribute& attribute : node.attributes) put_attribute(out, attribute);
  if (!node.domain.empty()) out.add_string(kDomain, node.domain);
}

void put_port(pbf_writer& to, uint32_t field, const Port& port) {
  using namespace value_proto;
  pbf_writer out(to, field);
  out.add_string(kName, port.name);
  pbf_writer type(out, kType);
  pbf_writer tensor(type, kTensorType);
  tensor.add_enum(kElementType, static_cast<int32_t>(port.type));
  pbf_writer shape(tensor, kShape);
  for (const auto& size : port.dims) {
    pbf_writer dim(shape, kDim);
    if (const auto* number = std::get_if<int64_t>(&size)) {
      dim.add_int64(kDimValue, *number);
    } else {
      dim.add_string(kDimVariable, std::get<std::string>(size));
    }
  }
}

void put_header(pbf_writer& out, const std::string& name, Type type, const std::vector<int64_t>& dims) {
  for (const int64_t dim : dims) out.add_int64(tensor_proto::kDims, dim);
  out.add_int32(tensor_proto::kDataType, static_cast<int32_t>(type));
  out.add_string(tensor_proto::kName, name);
}

void put_constant(pbf_writer& to, const Constant& constant) {
  pbf_writer out(to, graph_proto::kInitializer);
  put_header(out, constant.name, constant.type, constant.dims);
  out.add_bytes(tensor_proto::kRawData, constant.bytes);
}

void put_external(pbf_writer& to, const External& weight, const std::string& file) {
  pbf_writer out(to, graph_proto::kInitializer);
  put_header(out, weight.name, weight.type, weight.dims);
  put_pair(out, tensor_proto::kExternalData, "location", file);
  put_pair(out, tensor_proto::kExternalData, "offset", absl::StrCat(weight.offset));
  put_pair(out, tensor_proto::kExternalData, "length", absl::StrCat(weight.length));
  out.add_enum(tensor_proto::kDataLocation, tensor_proto::kExternal);
}

void put_opset(pbf_writer& to, const std::string& domain, int64_t version) {
  pbf_writer out(to, model_proto::kOpsetImport);
  out.add_string(opset_proto::kDomain, domain);
  out.add_int64(opset_proto::kVersion, version);
}

template <typename Number>
void append_number(std::string& to, Number number) {
  static_assert(std::is_trivially_copyable_v<Number>);
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  to.append(bytes, sizeof number);
}

}  // namespace

std::string Graph::name_of(const std::string& op) { return absl::StrCat(scope_, "/", op, "_", count_++); }

std::string Graph::add(Node node) { return add_with_outputs(std::move(node), 1).front(); }

std::vector<std::string> Graph::add_with_outputs(Node node, size_t count) {
  const std::string name = name_of(node.op);
  node.outputs.resize(std::max(count, node.outputs.size()));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) node.outputs[i] = i == 0 ? name : absl::StrCat(name, ":", i);
  }
  nodes_.push_back(std::move(node));
  node_names_.push_back(name);
  return nodes_.back().outputs;
}

std::string Graph::constant(Type type, std::vector<int64_t> dims, std::string bytes) {
  const auto known = std::find_if(constants_.begin(), constants_.end(), [&](const Constant& one) {
    return one.type == type && one.dims == dims && one.bytes == bytes;
  });
  if (known != constants_.end()) return known->name;
  constants_.push_back({absl::StrCat("constant_", constants_.size()), type, std::move(dims), std::move(bytes)});
  return constants_.back().name;
}

std::string Graph::integers(const std::vector<int64_t>& values) {
  std::string bytes;
  for (const int64_t value : values) append_number(bytes, value);
  return constant(Type::kInt64, {static_cast<int64_t>(values.size())}, std::move(bytes));
}

std::string Graph::integer(int64_t value) {
  std::string bytes;
  append_number(bytes, value);
  return constant(Type::kInt64, {}, std::move(bytes));
}

std::string Graph::real(double value, Type type) {
  std::string bytes;
  const auto narrow = static_cast<float>(value);
  if (type == Type::kFloat16) {
    append_number(bytes, c10::Half(narrow).x);
  } else if (type == Type::kBFloat16) {
    append_number(bytes, c10::BFloat16(narrow).x);
  } else {
    append_number(bytes, narrow);
  }
  return constant(type, {}, std::move(bytes));
}

std::string serialized(const Graph& graph, const std::vector<External>& weights, const About& about) {
  std::string bytes;
  pbf_writer model(bytes);
  model.add_int64(model_proto::kIrVersion, ir_version(about.opset));
  model.add_string(model_proto::kProducerName, about.producer);
  model.add_string(model_proto::kProducerVersion, about.producer_version);
  model.add_int64(model_proto::kModelVersion, about.model_version);
  {
    pbf_writer body(model, model_proto::kGraph);
    for (size_t i = 0; i < graph.nodes().size(); ++i) put_node(body, graph.nodes()[i], graph.node_names()[i]);
    body.add_string(graph_proto::kName, about.graph_name);
    for (const Constant& constant : graph.constants()) put_constant(body, constant);
    for (const External& weight : weights) put_external(body, weight, about.data_file);
    for (const Port& port : graph.inputs) put_port(body, graph_proto::kInput, port);
    for (const Port& port : graph.outputs) put_port(body, graph_proto::kOutput, port);
  }
  put_opset(model, "", about.opset);
  const auto& nodes = graph.nodes();
  if (std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.domain == kMicrosoft; }))
    put_opset(model, kMicrosoft, 1);
  for (const auto& [key, value] : about.metadata) put_pair(model, model_proto::kMetadataProps, key, value);
  return bytes;
}

}  // namespace titan::checkpoint::onnx
