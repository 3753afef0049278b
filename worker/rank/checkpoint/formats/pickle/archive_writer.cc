#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"

#include <algorithm>

#include "worker/rank/checkpoint/formats/pickle/archive_stream.h"
#include "worker/rank/checkpoint/formats/pickle/types.h"

namespace titan::pickle {

std::string archive_of(const std::vector<Entry>& entries) {
  std::string file;
  size_t total = 4096;
  for (const Entry& entry : entries) total += entry.bytes.size() + 512;
  file.reserve(total);
  ArchiveStream archive([&](std::string_view bytes) {
    file += bytes;
    return absl::OkStatus();
  });
  // Writing to memory cannot fail.
  for (const Entry& entry : entries) archive.add(entry.name, entry.bytes).IgnoreError();
  archive.finish().IgnoreError();
  return file;
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

Writer& torch_size(Writer& writer, const std::vector<int64_t>& sizes) {
  return writer.name("torch", "Size").mark().integers(sizes).tuple().reduce();
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
