#include "worker/rank/checkpoint/formats/pickle/names.h"

#include <algorithm>

namespace titan::pickle {
namespace {

// Sorted. None of them is ever imported: readers compare the names and use the values next to them.
constexpr std::string_view kKnown[] = {
    "_codecs.encode",
    "_io.BytesIO",
    "collections.OrderedDict",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "torch.BFloat16Storage",
    "torch.BoolStorage",
    "torch.ByteStorage",
    "torch.CharStorage",
    "torch.DoubleStorage",
    "torch.FloatStorage",
    "torch.HalfStorage",
    "torch.IntStorage",
    "torch.LongStorage",
    "torch.ShortStorage",
    "torch.Size",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch.bfloat16",
    "torch.bool",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.float16",
    "torch.float32",
    "torch.float64",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.int8",
    "torch.serialization._get_layout",
    "torch.uint8",
};

constexpr std::string_view kMemoryFormats[] = {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST",
                                               "TORCH_PRESERVE_FORMAT"};

}  // namespace

std::string_view known_name(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > 128) return {};
  const std::string full = std::string(module) + "." + std::string(name);
  const auto* found = std::lower_bound(std::begin(kKnown), std::end(kKnown), full);
  return found != std::end(kKnown) && *found == full ? *found : std::string_view{};
}

// torch has this enum in two places; its members count from 0.
std::optional<std::int64_t> known_enum_value(std::string_view enum_class, std::string_view member) {
  if (enum_class != "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING" &&
      enum_class != "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING") {
    return std::nullopt;
  }
  const auto* found = std::find(std::begin(kMemoryFormats), std::end(kMemoryFormats), member);
  if (found == std::end(kMemoryFormats)) return std::nullopt;
  return found - std::begin(kMemoryFormats);
}

}  // namespace titan::pickle
