#pragma once

// Finds the functions at addresses in the files that a process has mapped, and formats their names.

#include <libelf.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/host/descriptor.h"

namespace titan::stacks {

// A line of /proc/PID/maps.
struct Mapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  unsigned major = 0, minor = 0;
  uint64_t inode = 0;  // 0: not a file.
  std::string path;
};

// Returns the memory mappings of a process; empty if /proc cannot be read.
std::vector<Mapping> mappings_of(pid_t pid);

// Opens the mapped file: the exact file, even if it was deleted since, where the kernel provides it (to root);
// otherwise the file at its path. That path may lead to a device or pipe by now, so only regular files are opened.
// Returns an empty descriptor if the file is not available.
host::Descriptor open_mapped(pid_t pid, const Mapping& mapping);

// Demangles a symbol. In a long C++ name the innermost text in <> and () is replaced by "...", then outer text:
// "at::native::(...)::cpu_kernel<...>(at::TensorIteratorBase&, ...)".
std::string function_name(const std::string& symbol);

// Shortens a name, like function_name(), if it is longer than `most` characters.
std::string shortened_name(const std::string& name, size_t most);

struct Function {
  std::string name;  // Empty: no symbol was found.
  uint64_t begin = 0;
};

// A file that processes have mapped; it stays open. Its symbols are read once for all addresses of a look_up():
// LibTorch has half a million symbols.
class ElfFile {
 public:
  explicit ElfFile(std::string name) : name_(std::move(name)) {}
  ~ElfFile();
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  const std::string& name() const { return name_; }  // Without its folder.

  // Returns a reference that the caller must end, or null if it is not a readable ELF file. The first call opens the
  // file.
  Elf* open(pid_t pid, const Mapping& mapping);
  // Takes an ELF image that is not in a file: the kernel's vDSO page.
  void adopt(Elf* elf);

  // Finds the functions at these addresses, which are relative to the file.
  void look_up(std::vector<uint64_t> addresses);
  // Returns the function at an address that was looked up.
  const Function& at(uint64_t address) const;

 private:
  void read_symbols(Elf_Scn* section, const std::vector<uint64_t>& addresses);

  const std::string name_;
  bool tried_ = false;
  host::Descriptor fd_;
  Elf* elf_ = nullptr;
  std::map<uint64_t, Function> known_;
};

// The files of all inspected processes: ranks map the same ones.
class ElfFiles {
 public:
  ElfFile& of(const Mapping& mapping);
  ElfFile& nameless(const std::string& name);  // Adds a new entry on each call.

 private:
  std::map<std::tuple<unsigned, unsigned, uint64_t, std::string>, std::unique_ptr<ElfFile>> files_;
  std::vector<std::unique_ptr<ElfFile>> nameless_;
};

}  // namespace titan::stacks
