#pragma once

// Finds the functions of addresses in the files that a process has mapped, and names them for people.

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
  uint64_t inode = 0;  // 0: of no file.
  std::string path;
};

std::vector<Mapping> mappings_of(pid_t pid);

// The file that is mapped there: the very one, also when it was deleted since, where the kernel gives it (to root),
// else what its path leads to. That may be anything by now, a device or a pipe, and is opened as a plain file or not at
// all. Empty: it cannot be had.
host::Descriptor open_mapped(pid_t pid, const Mapping& mapping);

// A symbol's name for people. Of a long C++ name the innermost of what stands in <> and () is folded, then more of it:
// "at::native::(...)::cpu_kernel<...>(at::TensorIteratorBase&, ...)".
std::string function_name(const std::string& symbol);

// The folding alone, of a name that is longer than `most`.
std::string shortened_name(const std::string& name, size_t most);

struct Function {
  std::string name;  // Empty: no symbol is there.
  uint64_t begin = 0;
};

// A file that processes have mapped, for as long as one is asked about. Its symbols are gone through once for all
// addresses that are asked for together: LibTorch has half a million of them.
class ElfFile {
 public:
  explicit ElfFile(std::string name) : name_(std::move(name)) {}
  ~ElfFile();
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  const std::string& name() const { return name_; }  // Without its folder.

  // A reference of the caller's own; null when it is no ELF file that can be read. Opens it when it is first asked for.
  Elf* open(pid_t pid, const Mapping& mapping);
  // For one that lies in no file: the kernel's page with its clock.
  void adopt(Elf* elf);

  // Addresses as the file has them.
  void look_up(std::vector<uint64_t> addresses);
  // Of an address that was looked up.
  const Function& at(uint64_t address) const;

 private:
  void read_symbols(Elf_Scn* section, const std::vector<uint64_t>& addresses);

  const std::string name_;
  bool tried_ = false;
  host::Descriptor fd_;
  Elf* elf_ = nullptr;
  std::map<uint64_t, Function> known_;
};

// All files of all processes that are looked at: ranks have the same ones.
class ElfFiles {
 public:
  ElfFile& of(const Mapping& mapping);
  ElfFile& nameless(const std::string& name);  // One more each time.

 private:
  std::map<std::tuple<unsigned, unsigned, uint64_t, std::string>, std::unique_ptr<ElfFile>> files_;
  std::vector<std::unique_ptr<ElfFile>> nameless_;
};

}  // namespace titan::stacks
