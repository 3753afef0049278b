#include <zlib.h>

#include <algorithm>

#include "worker/checkpoint/pickle/types.h"
#include "worker/checkpoint/pickle/writer.h"
#include "worker/checkpoint/pickle/zip_format.h"

namespace titan::pickle {
namespace {

// Names are UTF-8; the time is the format's first.
constexpr uint32_t kVersion = 20, kUtf8 = 1 << 11, kFirstDay = 33;

class Bytes {
 public:
  Bytes& add(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  std::string out;
};

uint32_t checksum(std::string_view bytes) {
  uint32_t sum = 0;
  while (!bytes.empty()) {  // zlib counts in 32 bits.
    const std::string_view part = bytes.substr(0, size_t{1} << 30);
    sum =
        static_cast<uint32_t>(crc32(sum, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size())));
    bytes.remove_prefix(part.size());
  }
  return sum;
}

// What local and central header share, from "version needed" to the length of the name.
void describe(Bytes& to, uint32_t sum, size_t bytes, size_t name_bytes) {
  to.add(kVersion, 2)
      .add(kUtf8, 2)
      .add(0, 2)
      .add(0, 2)
      .add(kFirstDay, 2)
      .add(sum, 4)
      .add(bytes, 4)
      .add(bytes, 4)
      .add(name_bytes, 2);
}

}  // namespace

std::string archive_of(const std::vector<Entry>& entries) {
  Bytes file, directory;
  size_t total = 4096;
  for (const Entry& entry : entries) total += entry.bytes.size() + 256;
  file.out.reserve(total);
  for (const Entry& entry : entries) {
    const std::string name = "archive/" + entry.name;
    const uint32_t sum = checksum(entry.bytes);
    directory.add(kCentralHeader, 4).add(kVersion, 2);
    describe(directory, sum, entry.bytes.size(), name.size());
    directory.add(0, 2).add(0, 2).add(0, 2).add(0, 2).add(0, 4).add(file.out.size(), 4);
    directory.out += name;
    file.add(kLocalHeader, 4);
    describe(file, sum, entry.bytes.size(), name.size());
    file.add(0, 2);
    file.out += name;
    file.out += entry.bytes;
  }
  const size_t begin = file.out.size();
  file.out += directory.out;
  file.add(kEndRecord, 4)
      .add(0, 4)
      .add(entries.size(), 2)
      .add(entries.size(), 2)
      .add(directory.out.size(), 4)
      .add(begin, 4)
      .add(0, 2);
  return std::move(file.out);
}

Writer& tensor(Writer& writer, std::string_view type, const std::vector<int64_t>& shape, const std::string& key) {
  const auto* known =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& one) { return one.name == type; });
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  writer.name("torch._utils", "_rebuild_tensor_v2").mark();
  writer.mark()
      .text("storage")
      .name("torch", known->storage)
      .text(key)
      .text("cpu")
      .integer(elements)
      .tuple()
      .reference();
  writer.integer(0).integers(shape).integers(strides).boolean(false);
  writer.name("collections", "OrderedDict").mark().tuple().reduce();
  return writer.tuple().reduce();
}

std::string save_plain(const nlohmann::json& value) {
  const std::string pickle = Writer().plain(value).finish();
  return archive_of({{"data.pkl", pickle}, {"byteorder", "little"}, {"version", "3\n"}});
}

std::string save_tensor(std::string_view type, const std::vector<int64_t>& shape, std::string_view bytes) {
  Writer writer(2);
  const std::string pickle = tensor(writer, type, shape, "0").finish();
  return archive_of({{"data.pkl", pickle}, {"byteorder", "little"}, {"data/0", bytes}, {"version", "3\n"}});
}

}  // namespace titan::pickle
