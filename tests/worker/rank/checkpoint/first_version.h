#pragma once

// Rewrites a step in the format before shards had an index: every piece is listed in the manifest, with its place and
// the checksums of its chunks.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint::testing {

inline std::vector<uint32_t> piece_crcs(const std::string& file, int64_t begin, int64_t bytes) {
  std::vector<uint32_t> crcs;
  for (int64_t at = 0; at < bytes; at += kChunkBytes) {
    crcs.push_back(storage::crc32c(file.data() + begin + at, static_cast<size_t>(std::min(kChunkBytes, bytes - at))));
  }
  return crcs;
}

inline void make_first_version(const std::string& folder) {
  storage::Files& files = storage::posix_files();
  const std::string path = storage::join_path(folder, kManifestName);
  auto manifest = manifest_from_text(*storage::read_file(files, path));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const PlacementIndex placement(manifest->rows, manifest->tensors.size());
  for (size_t number = 0; number < manifest->files.size(); ++number) {
    FileRecord& file = manifest->files[number];
    const std::string shard = storage::join_path(folder, file.name), bytes = *storage::read_file(files, shard);
    const auto entries = read_header(**files.open(shard), shard);
    ASSERT_TRUE(entries.ok()) << entries.status();
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    file.header_bytes = 8 + static_cast<int64_t>(header);
    file.header_crc = storage::crc32c(bytes.data(), static_cast<size_t>(file.header_bytes));
    file.index_bytes = 0;
    placement.for_each_piece_in(static_cast<int64_t>(number), [&](size_t tensor, const Box& box) {
      TensorRecord& record = manifest->tensors[tensor];
      const TensorEntry& entry = entries->at(record.key);  // One piece of each: no copies.
      record.pieces.push_back(
          {static_cast<int>(number), entry.begin, box, piece_crcs(bytes, entry.begin, entry.bytes())});
    });
  }
  manifest->version = 1;
  manifest->rows.clear();
  ASSERT_TRUE(storage::atomic_write(files, path, to_text(*manifest)).ok());
}

}  // namespace titan::checkpoint::testing
