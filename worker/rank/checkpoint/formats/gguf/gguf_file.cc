#include "worker/rank/checkpoint/formats/gguf/gguf_file.h"

#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

namespace titan::checkpoint::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3;
constexpr int64_t kBlockBytes = 2 + kBlock;
// Types of metadata.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename Number>
void put(std::string& to, Number number) {
  static_assert(std::is_arithmetic_v<Number>);
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  to.append(bytes, sizeof number);
}

void put_text(std::string& to, std::string_view text) {
  put<uint64_t>(to, text.size());
  to.append(text);
}

}  // namespace

int64_t bytes_of(Type type, int64_t rows, int64_t columns) {
  const int64_t values = rows * columns;
  switch (type) {
    case Type::kF32:
      return values * 4;
    case Type::kF16:
    case Type::kBF16:
      return values * 2;
    case Type::kQ8_0:
      return values / kBlock * kBlockBytes;
  }
  return 0;
}

int64_t bytes_of(const Tensor& tensor) {
  const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  const int64_t values =
      std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<int64_t>());
  return columns == 0 ? 0 : bytes_of(tensor.type, values / columns, columns);
}

int64_t padding_after(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

void Metadata::begin(std::string_view key, uint32_t type) {
  ++count_;
  put_text(bytes_, key);
  put(bytes_, type);
}

void Metadata::begin_list(std::string_view key, uint32_t type, size_t count) {
  begin(key, kArray);
  put(bytes_, type);
  put<uint64_t>(bytes_, count);
}

void Metadata::add(std::string_view key, std::string_view text) {
  begin(key, kString);
  put_text(bytes_, text);
}

void Metadata::add_flag(std::string_view key, bool value) {
  begin(key, kBool);
  put<uint8_t>(bytes_, value ? 1 : 0);
}

void Metadata::add_count(std::string_view key, int64_t value) {
  begin(key, kUint32);
  put(bytes_, static_cast<uint32_t>(value));
}

void Metadata::add_real(std::string_view key, double value) {
  begin(key, kFloat32);
  put(bytes_, static_cast<float>(value));
}

void Metadata::add_list(std::string_view key, const std::vector<std::string>& values) {
  begin_list(key, kString, values.size());
  for (const std::string& value : values) put_text(bytes_, value);
}

void Metadata::add_list(std::string_view key, const std::vector<int32_t>& values) {
  begin_list(key, kInt32, values.size());
  for (const int32_t value : values) put(bytes_, value);
}

std::string header(const Metadata& metadata, const std::vector<Tensor>& tensors) {
  std::string bytes(kMagic);
  put(bytes, kVersion);
  put<uint64_t>(bytes, tensors.size());
  put<uint64_t>(bytes, static_cast<uint64_t>(metadata.count()));
  bytes += metadata.bytes();
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    put_text(bytes, tensor.name);
    put<uint32_t>(bytes, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t dim = tensor.shape.size(); dim-- > 0;) put<uint64_t>(bytes, static_cast<uint64_t>(tensor.shape[dim]));
    put(bytes, static_cast<uint32_t>(tensor.type));
    put<uint64_t>(bytes, static_cast<uint64_t>(offset));
    const int64_t size = bytes_of(tensor);
    offset += size + padding_after(size);
  }
  bytes.append(static_cast<size_t>(padding_after(static_cast<int64_t>(bytes.size()))), '\0');
  return bytes;
}

}  // namespace titan::checkpoint::gguf
