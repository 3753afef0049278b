#pragma once

// The bytes of a GGUF file, version 3 (the format of ggml, which llama.cpp and the programs around it read): metadata,
// a table of tensors, then their values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace titan::checkpoint::gguf {

// How a tensor's values are stored, by ggml's numbers.
enum class Type : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ8_0 = 8,  // Blocks of 32 values: their scale in float16, then 32 signed bytes.
  kBF16 = 30,
};

inline constexpr int64_t kBlock = 32;      // Values of a block of kQ8_0.
inline constexpr int64_t kAlignment = 32;  // Each tensor begins at a multiple, in bytes.

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // Row-major, as in LibTorch; the file lists it in reverse.
  Type type = Type::kF32;
};

// Returns the bytes of `rows` times `columns` values; `columns` must be a multiple of kBlock for kQ8_0.
int64_t bytes_of(Type type, int64_t rows, int64_t columns);
int64_t bytes_of(const Tensor& tensor);
// Returns the zero bytes that follow `bytes` bytes, so that the next tensor is aligned.
int64_t padding_after(int64_t bytes);

// Named values, in the order in which they are added.
class Metadata {
 public:
  void add(std::string_view key, std::string_view text);
  void add_flag(std::string_view key, bool value);
  void add_count(std::string_view key, int64_t value);  // Stored as uint32.
  void add_real(std::string_view key, double value);    // Stored as float32.
  void add_list(std::string_view key, const std::vector<std::string>& values);
  void add_list(std::string_view key, const std::vector<int32_t>& values);

  int64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);
  void begin_list(std::string_view key, uint32_t type, size_t count);

  std::string bytes_;
  int64_t count_ = 0;
};

// Returns what precedes the first tensor's values, up to an aligned place. The tensors' values follow in this order,
// each with its padding.
std::string header(const Metadata& metadata, const std::vector<Tensor>& tensors);

}  // namespace titan::checkpoint::gguf
