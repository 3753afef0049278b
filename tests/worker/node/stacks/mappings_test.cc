#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "worker/node/stacks/elf_file.h"

namespace titan::stacks {
namespace {

Mapping mapping_of(const void* address) {
  const auto at = reinterpret_cast<uint64_t>(address);
  for (Mapping& mapping : mappings_of(::getpid())) {
    if (mapping.begin <= at && at < mapping.end) return std::move(mapping);
  }
  return {};
}

struct stat status_of(int fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return info;
}

TEST(MappingsTest, AProgramsOwnFileIsFound) {
  const Mapping mapping = mapping_of(reinterpret_cast<const void*>(&mapping_of));
  EXPECT_EQ(mapping.path, std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_NE(mapping.inode, 0);
  EXPECT_TRUE(open_mapped(::getpid(), mapping));
  const int on_the_stack = 0;
  EXPECT_FALSE(open_mapped(::getpid(), mapping_of(&on_the_stack)));
}

// The path may lead to another file by now: an upgraded program's, or anything that a user put there.
TEST(MappingsTest, OnlyAPlainFileIsOpened) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-mappings-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/a name (deleted)";
  std::ofstream(path) << "what is mapped";
  host::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, file.get(), 0);
  const Mapping mapping = mapping_of(mapped);
  EXPECT_EQ(mapping.path, path);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  // Opening it for reading would wait for a writer. If the kernel provides the mapped file itself, that file is opened.
  const host::Descriptor opened = open_mapped(::getpid(), mapping);
  if (opened) {
    EXPECT_EQ(status_of(opened.get()).st_ino, status_of(file.get()).st_ino);
  }
  ::munmap(mapped, 4096);
  EXPECT_FALSE(open_mapped(::getpid(), mapping));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace titan::stacks
