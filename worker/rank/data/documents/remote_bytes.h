#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/io/data_files/remote_files.h"
#include "common/io/storage/file.h"

namespace titan::data {

// A remote file of `size` bytes, read at any place: a few streams stay where they are, for reads that follow each
// other. Reads of it end with the errors of RemoteFiles, and with DataLoss when the file ends before.
std::unique_ptr<storage::ReadableFile> remote_bytes(std::shared_ptr<data_files::RemoteFiles> remote,
                                                    const std::string& path, int64_t size);

}  // namespace titan::data
