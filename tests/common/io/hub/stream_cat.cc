// Prints a hub's file, read as a stream:
//   hub_stream_cat ENDPOINT REPO FILE REVISION OFFSET CHUNK_BYTES READ_BYTES [CACHE_FOLDER CACHE_BYTES]
// REPO is a dataset repository. On an error it prints the message on stderr and exits with 1.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/io/hub/stream.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 7 && words.size() != 9) return 2;
  titan::hub::StreamOptions options;
  options.settings.endpoint = words[0];
  options.retry = {.attempts = 4, .first_wait = absl::Milliseconds(1)};
  options.chunk_bytes = std::stoll(words[5]);
  if (words.size() == 9) options.cache_folder = words[7], options.cache_bytes = std::stoll(words[8]);
  const auto stream = titan::hub::open_stream(options, {titan::hub::RepoKind::kDataset, words[1]}, words[2], words[3],
                                              std::stoll(words[4]));
  absl::Status status = stream.status();
  std::string buffer(std::stoul(words[6]), '\0');
  while (status.ok()) {
    const auto size = (*stream)->read(buffer.data(), buffer.size());
    status = size.status();
    if (!size.ok() || *size == 0) break;
    std::fwrite(buffer.data(), 1, *size, stdout);
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
