#include "tests/fuzz/scratch.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

struct Scratch {
  std::string path;
  Scratch() {
    path = access("/dev/shm", W_OK) == 0 ? "/dev/shm/titan-fuzz-XXXXXX" : "/tmp/titan-fuzz-XXXXXX";
    require(mkdtemp(path.data()) != nullptr, "cannot make a folder for the files that are read");
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

const std::string& scratch_folder() {
  static const Scratch scratch;
  return scratch.path;
}

std::string scratch_file(const std::string& name, std::string_view bytes) {
  std::string path = scratch_folder() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace titan::fuzz
