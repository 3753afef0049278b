#pragma once

// A graph of operators in memory, and its bytes as a file of ONNX (https://onnx.ai): a message of Protocol Buffers
// whose weights lie in another file.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace titan::checkpoint::onnx {

// Element types, by the numbers of TensorProto.DataType.
enum class Type : int32_t { kFloat = 1, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10, kBFloat16 = 16 };

inline constexpr char kMicrosoft[] = "com.microsoft";  // Domain of ONNX Runtime's own operators.

// An attribute of a node.
struct Attribute {
  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>> value;
};

struct Node {
  std::string op;
  std::vector<std::string> inputs;  // An empty name stands for an omitted input.
  std::vector<Attribute> attributes = {};
  std::string domain = {};                // Empty: ONNX's own operators.
  std::vector<std::string> outputs = {};  // The graph names those that are missing or empty.
};

// An input or output. A dim is a size, or a name for one that a caller chooses.
struct Port {
  std::string name;
  Type type = Type::kFloat;
  std::vector<std::variant<int64_t, std::string>> dims;
};

// A small tensor whose values are in the graph.
struct Constant {
  std::string name;
  Type type = Type::kFloat;
  std::vector<int64_t> dims;
  std::string bytes;  // Little-endian.
};

// A tensor whose values are bytes [offset, offset + length) of the data file.
struct External {
  std::string name;
  Type type = Type::kFloat;
  std::vector<int64_t> dims;
  int64_t offset = 0, length = 0;
};

class Graph {
 public:
  // Names of the following nodes and of their outputs begin with `scope`, such as "layers.0.attention".
  void set_scope(std::string scope) { scope_ = std::move(scope); }

  // Appends a node and returns the name of its first output.
  std::string add(Node node);
  // Appends a node with at least `count` outputs, and returns the names of all.
  std::vector<std::string> add_with_outputs(Node node, size_t count);

  // Return the name of a constant, the same for equal ones: int64 [n] or a scalar, or a scalar of a real type.
  std::string integers(const std::vector<int64_t>& values);
  std::string integer(int64_t value);
  std::string real(double value, Type type);

  std::vector<Port> inputs, outputs;
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<std::string>& node_names() const { return node_names_; }
  const std::vector<Constant>& constants() const { return constants_; }

 private:
  std::string name_of(const std::string& op);
  std::string constant(Type type, std::vector<int64_t> dims, std::string bytes);

  std::string scope_;
  int64_t count_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::string> node_names_;
  std::vector<Constant> constants_;
};

// Fields of a model file besides its graph.
struct About {
  int64_t opset = 23;
  std::string producer, producer_version;
  int64_t model_version = 0;
  std::string graph_name;
  std::string data_file;  // Name of the file with the external tensors, in the same folder.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Returns the bytes of the model file. Its IR version is that of the release of ONNX with `opset`, 21 to 25.
std::string serialized(const Graph& graph, const std::vector<External>& weights, const About& about);

}  // namespace titan::checkpoint::onnx
