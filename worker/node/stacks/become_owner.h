#pragma once

#include <sys/types.h>

namespace titan::stacks {

// Makes this process one of the user whose process `pid` is, without a way back: it reads files and memory which that
// user may have made to deceive it. Of root's rights it keeps the one that finds a mapped file by its mapping, also
// when another one has its name since. Nothing is changed unless this user is root and that one is not, nor where Yama
// lets root alone trace. False: it could not be done, and this process is to end.
bool become_owner_of(pid_t pid);

}  // namespace titan::stacks
