#pragma once

#include <sys/types.h>

namespace titan::stacks {

// Permanently changes this process to the user that owns process `pid`, because it reads files and memory that this
// user may have crafted. Of root's capabilities it keeps only the one that opens a mapped file by its mapping, even if
// another file now has its name. Changes nothing unless this process is root and the owner is not, or where Yama lets
// only root trace. Returns false if the change failed; then this process must end.
bool become_owner_of(pid_t pid);

}  // namespace titan::stacks
