#pragma once

// The folder of encodings that several processes fill, each with some of its shards, and a killed one continues.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/tools/images/shard_writer.h"

namespace titan::tools {

class EncodingsFolder {
 public:
  // `mark`: names this process among those that share the folder. Nothing is read or written yet.
  EncodingsFolder(storage::Files& files, std::string folder, std::string mark)
      : files_(files), folder_(std::move(folder)), mark_(std::move(mark)) {}

  std::string path(const std::string& name) const { return storage::join_path(folder_, name); }

  // Makes the folder, or checks that it holds encodings by the same plan, and locks this process's part of it. `plan`:
  // everything on which shards depend, as JSON; `empty`: the file of an empty caption. Removes what a killed process of
  // this mark left unfinished. FailedPrecondition: the folder holds other files, or encodings by another plan (names
  // the differing keys); Unavailable: another process has the same mark.
  absl::Status claim(const std::string& plan, const std::string& empty);

  // Returns a shard whose record, which is written last, fits its file.
  std::optional<data::EncodingsManifest::Shard> find_finished(int64_t number) const;
  // Writes a shard and its record. `skipped`: its unusable samples.
  absl::Status write_shard(int64_t number, const std::vector<EncodedSample>& samples, int64_t skipped);
  // Writes the manifest, which makes the encodings readable.
  absl::Status complete(const data::EncodingsManifest& manifest);

 private:
  absl::Status refuse_other_files() const;

  storage::Files& files_;
  const std::string folder_, mark_;
  std::unique_ptr<storage::FileLock> lock_;
};

}  // namespace titan::tools
